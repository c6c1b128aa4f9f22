"""CVXPY numbers variables anew in every process: what was unpickled is never taken for what was made here."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cvxpy as cp
import pytest
import torch
from cvxpy.lin_ops.lin_utils import ID_COUNTER
from torch.utils.data import default_collate

import drolayers as dro
from conelayers import compile_program
from conelayers.numbering import key_text
from tests.drolayers.learning.small import shop

ROOT = Path(__file__).parents[2]
ELSEWHERE = """
import copy, pickle, sys
import cvxpy as cp
import torch
import drolayers as dro
from torch.utils.data import default_collate as collated
from torch.utils._pytree import tree_map

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
    except dro.LayerError as error:
        print(error)
    else:
        raise AssertionError("taken for the same")
dro.DecisionProblem(cp.sum(cp.pos(y - x)) + cp.sum_squares(late - 1), [], problem.ambiguity)
assert [v.name() for v in decision.best] == ["x"]

solution = problem.solve(torch.tensor([[1.0, 2.0, 0.5]], dtype=torch.float64), known=told)
assert torch.equal(solution.variable(x), solution.variable("x")) and torch.equal(decision.best[x], solution.variable(x))
cost = cp.sum(cp.pos(y - x)) + cp.sum_squares(x - theirs[1])
here = dro.DecisionProblem(cost, problem.constraints, problem.ambiguity)
for stored in (problem, here, pickle.loads(pickle.dumps(here))):
    given = torch.tensor([[1.0, 2.0, 0.5]], dtype=torch.float64)
    answer, found = stored.solve(given, known=told), dro.DROLayer(stored).eval()(given, known=told)
    (own,), (stock,), exact = stored.variables, stored.known_data.parameters, stored.exact
    answer.variable(own), stored.program.variable(answer.primal, own), found.best[own], found.known[stock]
    assert own in found.best and same not in found.best and found.best.get(same) is None
    for wrong in (
        lambda: answer.variable(same),
        lambda: stored.program.variable(answer.primal, same),
        lambda: stored.program.pack({numbers[stock.id]: torch.zeros(1, 2)}),
        lambda: found.best[same],
        lambda: found.best[cp.Variable(2, name="x")],
        lambda: found.known[numbers[stock.id]],
        lambda: stored.loss({same: outcome}, outcome, told),
        lambda: stored.loss({own: outcome}, outcome, {numbers[stock.id]: torch.zeros(1, 2)}),
        lambda: copy.copy(found.best)[same],
        lambda: pickle.loads(pickle.dumps(found)).best[same],
        lambda: collated([found.best, found.best])[same],
        lambda: tree_map(torch.clone, found.best)[same],
        lambda: type(found.best)(found.best.items())[same],
    ):
        try:
            wrong()
        except dro.LayerError as error:
            last = str(error)
        else:
            raise AssertionError("taken for the same")
with open(sys.argv[1], "wb") as file:
    pickle.dump([dro.DROLayer(made).eval()(given, known=told) for made in (problem, here)], file)
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
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, [ROOT, *ROOT.glob("packages/*/src")])),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-c", ELSEWHERE, str(file)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    said = ended.stdout.splitlines()
    assert len(said) == 3, ended.stdout
    assert "problem.variables" in said[0]
    assert "give known by names" in said[1]
    assert "make the others after unpickling" in said[2]
    # At home again numbers tell, unless some may have been given elsewhere.
    back, mixed = pickle.loads(file.read_bytes())
    assert back.best[x].shape == back.known[stock].shape == mixed.best[next(iter(mixed.best))].shape == (1, 2)
    assert torch.equal(
        problem.loss(back.best, OUTCOME, back.known), problem.loss({x: back.best[x]}, OUTCOME, back.known)
    )
    assert x not in mixed.best
    with pytest.raises(dro.ModelError, match="x is not the x of this problem"):
        mixed.best[x]


def test_a_decision_by_itself_keeps_its_numbers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    made = shop(False)
    decision = dro.DROLayer(made.problem).eval()(torch.tensor([[2.5, 2.5, 0.5]], dtype=torch.float64))
    for what in (decision, made.problem, made.problem.ambiguity, made.problem.ambiguity.y):
        stored = pickle.dumps(what)
        with monkeypatch.context() as patch:
            patch.setattr(ID_COUNTER, "count", 1)
            pickle.loads(stored)
            assert ID_COUNTER.count > made.retail.id


THETA = torch.tensor([[2.0, 2.5, 0.5]], dtype=torch.float64)
OUTCOME = torch.ones(1, 2, dtype=torch.float64)


def bounded() -> dro.DecisionProblem:
    """With a variable, known data and a constraint with a worst case."""
    y, x, stock = dro.Uncertain(2), cp.Variable(2, nonneg=True, name="x"), cp.Parameter(2, name="stock")
    cost = cp.sum(x) + 4 * cp.sum(cp.pos(y - x - stock))
    return dro.DecisionProblem(cost, [dro.expected(cp.sum(y - x)) <= 9], dro.MomentSet(y, [dro.moments.SquaredNorm()]))


def adaptive() -> dro.DecisionProblem:
    """With a decision that is taken after y is seen."""
    y, x = dro.Uncertain(2, support=dro.support.Box(hi=4)), cp.Variable(2, nonneg=True, name="x")
    buy = dro.Adaptive(2, to=y, name="buy", nonneg=True)
    constraints = [dro.always(x + buy >= y)]
    return dro.DecisionProblem(cp.sum(x) + 3 * cp.sum(buy), constraints, dro.MomentSet(y, [dro.moments.SquaredNorm()]))


@pytest.fixture(scope="module")
def decided() -> tuple[dro.DecisionProblem, dro.Decision]:
    problem = bounded()
    return problem, dro.DROLayer(problem).eval()(THETA, known={"stock": torch.zeros(2)})


def keyed(problem: dro.DecisionProblem, decision: dro.Decision) -> dict[str, tuple[Any, Any]]:
    """What is answered by variable, parameter or constraint, and a key of it."""
    (x,), (stock,), (rule,) = problem.variables, problem.known_data.parameters, problem.rules
    at = decision.best, OUTCOME, decision.known
    return {
        "best": (decision.best, x),
        "candidates": (decision.candidates, x),
        "known": (decision.known, stock),
        "cat": (dro.Decision.cat([decision, decision]).best, x),
        "decision": (problem.decision(problem.solve(THETA, known=decision.known).primal), x),
        "violations": (problem.violations(*at), rule.constraint),
        "missed": (problem.missed(*at), rule.constraint),
        "shortfalls": (problem.shortfalls(THETA, known=decision.known), rule.constraint),
        "exact": (problem.exact, rule.constraint),
    }


def test_a_pickled_problem_answers_by_the_first_ones_in_their_process(
    decided: tuple[dro.DecisionProblem, dro.Decision],
) -> None:
    problem, decision = decided
    again, copied = pickle.loads(pickle.dumps(decided))
    for (_, key), (found, own) in zip(keyed(problem, decision).values(), keyed(again, copied).values(), strict=True):
        assert own is not key
        assert found[own] is found[key] is found.get(key)
        assert key in found
        assert list(found) == [*([] if "cost" not in found else ["cost"]), own]
    again.worst_case(copied.best, THETA, None, copied.known, of=problem.rules[0].constraint)


def test_what_is_none_of_a_problem_is_one_sentence(decided: tuple[dro.DecisionProblem, dro.Decision]) -> None:
    problem, decision = decided
    for found, key in keyed(problem, decision).values():
        twin, other = copy.deepcopy(key), cp.Variable(name="other")
        by_name = "take them by name: {v.name(): v for v in"
        for wrong, said in ((twin, by_name), (other, "other is none of"), ("no name", "no name is none of")):
            assert wrong not in found
            assert found.get(wrong) is None
            assert found.get(wrong, 3) == 3
            for kind in (dro.ModelError, KeyError):
                with pytest.raises(kind) as caught:
                    found[wrong]
                assert said in str(caught.value)
                assert not str(caught.value).startswith(("'", '"'))


def test_answers_are_dicts(decided: tuple[dro.DecisionProblem, dro.Decision]) -> None:
    problem, decision = decided
    for found, key in keyed(problem, decision).values():
        assert isinstance(found, dict)
        assert dict(found) == found == {**found}
        assert repr(found) == "{" + ", ".join(f"{key_text(own)}: {value!r}" for own, value in found.items()) + "}"
        for same in (copy.copy(found), copy.deepcopy(found)):
            assert type(same) is type(found)
            assert list(map(id, same)) == list(map(id, found))
            assert key in same
        stored = pickle.loads(pickle.dumps(found))
        assert [str(own) for own in stored] == [str(own) for own in found]
        assert key in stored
    batch = default_collate([decision.best, decision.best])
    (x,) = problem.variables
    assert batch[x].shape == (2, 1, 2)
    assert torch.equal(torch.utils._pytree.tree_map(torch.neg, decision.best)[x], -decision.best[x])
    costs = torch.func.vmap(lambda best: problem.loss(best, OUTCOME, decision.known))(batch)
    assert costs.shape == (2, 1)


@pytest.mark.parametrize("make", [bounded, adaptive])
def test_a_deep_copy_of_a_decision_is_of_the_same_problem(make: Callable[[], dro.DecisionProblem]) -> None:
    problem = make()
    known = {name: torch.zeros(shape) for name, shape in problem.known.items()}
    decision = dro.DROLayer(problem).eval()(THETA, known=known)
    twin = copy.deepcopy(decision)
    assert list(map(id, twin.best)) == list(map(id, decision.best))
    assert all(twin.best[v] is not decision.best[v] for v in twin.best)
    assert torch.equal(problem.loss(twin.best, OUTCOME, twin.known), problem.loss(decision.best, OUTCOME, known))
    assert torch.equal(twin.derivative, decision.derivative)
    for v, rule in twin.rule.items():
        assert torch.equal(rule(OUTCOME), decision.rule[v](OUTCOME))


def test_a_decision_with_a_graph_has_no_deep_copy(decided: tuple[dro.DecisionProblem, dro.Decision]) -> None:
    problem, _ = decided
    decision = dro.DROLayer(problem)(THETA.clone().requires_grad_(), known={"stock": torch.zeros(2)})
    with pytest.raises(dro.DifferentiationError, match=r"no_grad"):
        copy.deepcopy(decision)
    assert torch.equal(copy.copy(decision).best[problem.variables[0]], decision.best[problem.variables[0]])


def test_policies_answer_like_problems() -> None:
    y, x = dro.Uncertain(2), cp.Variable(2, nonneg=True, name="x")
    constraint = dro.expected(cp.sum(y - x)) <= 9
    ambiguity = dro.MomentSet(y, [dro.moments.SquaredNorm()])
    problem = dro.DecisionProblem(cp.sum(x) + 4 * cp.sum(cp.pos(y - x)), [constraint], ambiguity)
    Z = torch.rand(12, 1, generator=torch.Generator().manual_seed(0))
    Y = 2 + Z + torch.rand(12, 2, generator=torch.Generator().manual_seed(1))
    quick = {
        "nominal": dro.nominal.KNN(k=5),
        "pretraining": dro.Stage(epochs=1),
        "training": None,
        "trainer": dro.Trainer(progress=False),
    }
    learner = dro.DecisionFocusedLearner(problem, model=dro.Network(hidden=()), **quick).fit(Z, Y)
    plain = dro.baselines.SampleAverage(problem).fit(Z, Y)
    weighted = dro.baselines.WeightedSampleAverage(problem).fit(Z, Y)
    for policy in (learner, plain, weighted, copy.deepcopy(plain)):
        again = pickle.loads(pickle.dumps(policy))
        for contexts in (Z, Z.numpy()):
            assert policy.decide(contexts)[x].shape == again.decide(contexts)[x].shape == (12, 2)
            with pytest.raises(dro.ModelError, match="by name"):
                policy.decide(contexts)[copy.deepcopy(x)]
        assert policy.score(Z, Y) == again.score(Z, Y)
    again = pickle.loads(pickle.dumps(learner))
    for found in (again.violations(Z, Y), again.report(Z, Y).violations):
        assert constraint in found
        with pytest.raises(KeyError, match="by name"):
            found[copy.deepcopy(constraint)]


def test_programs_keep_the_numbers_of_their_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    x = cp.Variable(2, name="x")
    program = compile_program(cp.Problem(cp.Minimize(cp.sum(x)), [x >= 1]))
    stored = pickle.dumps(program)
    with monkeypatch.context() as patch:
        patch.setattr(ID_COUNTER, "count", 1)
        again = pickle.loads(stored)
        assert ID_COUNTER.count > x.id
    for twin in (program, again, copy.deepcopy(program)):
        assert torch.equal(twin.variable(torch.arange(2.0), x), torch.arange(2.0))
        with pytest.raises(dro.ModelError, match="whose x is another one: give the name, or the problem's own"):
            twin.variable(torch.arange(2.0), cp.Variable(2, name="x"))
    y = cp.Variable(2, name="x")
    both = compile_program(cp.Problem(cp.Minimize(cp.sum(x + y)), [x >= 1, y >= 1]))
    with pytest.raises(dro.ModelError, match="2 parts of this program are called x: give the variable itself"):
        both.variable(torch.arange(4.0), "x")
    assert both.variable(torch.arange(4.0), x).shape == both.variable(torch.arange(4.0), y).shape == (2,)
