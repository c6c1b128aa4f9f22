"""CVXPY numbers variables anew in every process: what was unpickled is never taken for what was made here."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import cvxpy as cp
import pytest
import torch
from cvxpy.lin_ops.lin_utils import ID_COUNTER

import drolayers as dro
from tests.learning.small import shop

ROOT = Path(__file__).parents[1]
ELSEWHERE = """
import pickle, sys
import cvxpy as cp
import torch
import drolayers as dro

with open(sys.argv[1], "rb") as file:
    before = [kind(2, name=f"early_{k}") for k in range(200) for kind in (cp.Variable, cp.Parameter)]
    problem, decision = pickle.load(file)
late = cp.Variable(2, name="late")
theirs = [*problem.variables, *problem.known_data.parameters, problem.ambiguity.y]
assert late.id > max(leaf.id for leaf in theirs)

y, (x,) = problem.ambiguity.y, problem.variables
numbers = {leaf.id: leaf for leaf in before}
same = numbers[x.id]
told = {"stock": torch.zeros(1, 2)}
outcome = torch.ones(1, 2, dtype=torch.float64)
problem.loss({x: outcome}, outcome, told)
for wrong in (
    lambda: problem.loss({same: outcome}, outcome, told),
    lambda: problem.loss({x: outcome}, outcome, {numbers[theirs[1].id]: torch.zeros(1, 2)}),
    lambda: dro.DecisionProblem(cp.sum(cp.pos(y - x)) + cp.sum_squares(same - 1), [], problem.ambiguity),
):
    try:
        wrong()
    except dro.DROError as error:
        print(error)
    else:
        raise AssertionError("taken for the same")
dro.DecisionProblem(cp.sum(cp.pos(y - x)) + cp.sum_squares(late - 1), [], problem.ambiguity)
assert [v.name() for v in decision.best] == ["x"]
"""


def test_numbers_do_not_collide_after_unpickling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ID_COUNTER, "count", 100)  # small numbers, as in a process of their own
    y, x, stock = dro.Uncertain(2), cp.Variable(2, name="x"), cp.Parameter(2, name="stock")
    problem = dro.DecisionProblem(
        cp.sum(x) + 3 * cp.sum(cp.pos(y - x - stock)), [x >= 0, x <= 9], dro.MomentSet(y, [dro.moments.SquaredNorm()])
    )
    theta = torch.tensor([[1.0, 2.0, 0.5]], dtype=torch.float64)
    decision = dro.DROLayer(problem).eval()(theta, known={"stock": torch.zeros(1, 2)})
    file = tmp_path / "problem.pickle"
    file.write_bytes(pickle.dumps((problem, decision)))
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", ELSEWHERE, str(file)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    said = ended.stdout.splitlines()
    assert len(said) == 3, ended.stdout
    assert "problem.variables" in said[0]
    assert "give known by names" in said[1]
    assert "make the others after unpickling" in said[2]


def test_a_decision_by_itself_keeps_its_numbers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    made = shop(False)
    decision = dro.DROLayer(made.problem).eval()(torch.tensor([[2.5, 2.5, 0.5]], dtype=torch.float64))
    for what in (decision, made.problem, made.problem.ambiguity, made.problem.ambiguity.y):
        stored = pickle.dumps(what)
        with monkeypatch.context() as patch:
            patch.setattr(ID_COUNTER, "count", 1)
            pickle.loads(stored)
            assert ID_COUNTER.count > made.retail.id
