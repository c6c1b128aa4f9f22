"""Problems that are sent to other processes: torch moves their tensors, and no view may read the memory they left."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch

import conelayers.program.program as programs
import drolayers as dro

ROOT = Path(__file__).parents[2]

SENT = """
import io, sys
from multiprocessing.reduction import ForkingPickler

import cvxpy as cp
import torch
import torch.multiprocessing as mp

import drolayers as dro


def newsvendor(d=20):
    y = dro.Uncertain(d, support=dro.support.Nonnegative())
    x = cp.Variable(d, nonneg=True)
    problem = dro.DecisionProblem(
        cp.sum(x) + 4 * cp.sum(cp.pos(y - x)), [], dro.MomentSet(y, [dro.moments.SquaredNorm()])
    )
    return problem, torch.cat([torch.linspace(1.0, 9.0, d), torch.tensor([5.0])]).double()[None]


def solve(problem, theta):
    return dro.DROLayer(problem)(theta).value.tolist()


class Rows(torch.utils.data.Dataset):
    def __init__(self, problem, theta):
        self.problem, self.theta = problem, theta

    def __len__(self):
        return 2

    def __getitem__(self, row):
        return solve(self.problem, self.theta)[0]


if __name__ == "__main__":
    problem, theta = newsvendor()
    layer = dro.DROLayer(problem, engine=sys.argv[2])
    before = layer(theta).value
    if sys.argv[1] == "process":
        worker = mp.get_context("spawn").Process(target=solve, args=(problem, theta))
        worker.start()
        worker.join()
        assert worker.exitcode == 0
    elif sys.argv[1] == "loader":
        loader = torch.utils.data.DataLoader(Rows(problem, theta), num_workers=1, multiprocessing_context="spawn")
        assert all(torch.allclose(value, before) for value in loader)
    else:
        ForkingPickler(io.BytesIO()).dump(problem)
    # What was freed is used again.
    junk = [torch.full((n,), 10**15) for n in (401, 420, 421, 440, 441, 861) for _ in range(20)]
    assert torch.equal(layer(theta).value, before)
"""


@pytest.mark.parametrize(
    ("way", "engine"), [("process", "batched"), ("loader", "batched"), ("pickler", "torch"), ("pickler", "moreau")]
)
def test_a_solved_problem_may_be_sent_to_a_process(way: str, engine: str, tmp_path: Path) -> None:
    """In a process of its own, since reading freed memory may end it."""
    if engine == "moreau":
        pytest.importorskip("moreau")
    script = tmp_path / "sent.py"
    script.write_text(SENT)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, [ROOT, *ROOT.glob("packages/*/src")])),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(script), way, engine]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr


def cached(thing: Any, seen: set[int]) -> Iterator[np.ndarray | torch.Tensor]:
    """Yield every array and every tensor that an object refers to."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, torch.Tensor) and thing.layout == torch.sparse_csr:
        yield from (thing.crow_indices(), thing.col_indices(), thing.values())
    elif isinstance(thing, np.ndarray | torch.Tensor):
        yield thing
    elif isinstance(thing, dict):
        for value in thing.values():
            yield from cached(value, seen)
    elif isinstance(thing, list | tuple):
        for value in thing:
            yield from cached(value, seen)
    elif hasattr(thing, "__dict__") and not isinstance(thing, type):
        yield from cached(vars(thing), seen)


def storage(tensor: torch.Tensor) -> int:
    """Identify the storage of a tensor: torch moves storages, and all tensors of one move along."""
    return tensor.untyped_storage()._cdata


@pytest.mark.parametrize("oracle", ["branch_and_bound", "enumeration"])
@pytest.mark.parametrize("quadratic", [False, True])
def test_no_cached_view_reads_the_memory_of_a_program(oracle: str, quadratic: bool) -> None:
    y = dro.Uncertain(2, support=dro.support.Nonnegative())
    x, lot = cp.Variable(2, nonneg=True), cp.Variable(2, boolean=True)
    stock = x + 3 * lot
    cost = cp.sum(x) + 2.5 * cp.sum(lot) + 4 * cp.sum(cp.pos(y - stock)) + (cp.sum_squares(x) if quadratic else 0.0)
    problem = dro.DecisionProblem(cost, [cp.norm(x) <= 4], dro.MomentSet(y, [dro.moments.SquaredNorm()]))
    theta = torch.tensor([[4.0, 3.0, 0.5], [2.0, 3.0, 1.5]], dtype=torch.float64, requires_grad=True)
    for engine in ("batched", "torch"):
        layer = dro.DROLayer(problem, oracle=oracle, engine=engine, enumerate_up_to=0)
        layer(theta).expected(lambda point: point[x].sum(2)).sum().backward()
    program = problem.program
    found = list(cached(programs._KNOWN[program], set()))
    assert found
    for tensor in program._tensors().values():
        for other in found:
            if isinstance(other, np.ndarray):
                assert not np.shares_memory(other, tensor.numpy())
            elif storage(other) != storage(tensor):
                assert not np.shares_memory(other.numpy(), tensor.numpy())
