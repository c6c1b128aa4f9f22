"""How often a reader turns back: files of both packages in the order in which their functions are first called.

    python benchmarks/walk.py

A reader who follows a call goes to the file of every function that is called for the first time. Going to a file that
was left before is a turn back. Walks: building a problem, a continuous and a mixed-integer decision with their
derivatives, and ``fit``, as it is and where it compares nothing, as once it did. The last column counts as if every
folder were a single file: fewer turns no cutting of files can reach.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
import warnings
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

import cvxpy as cp
import numpy as np
import torch

import drolayers as dro

SPECS = [importlib.util.find_spec(name) for name in ("conelayers", "drolayers")]
ROOTS = tuple(str(Path(spec.origin).parent) + os.sep for spec in SPECS if spec is not None and spec.origin)
"""The folders of the packages; before the engine had its own there was one."""


def walk(work: Callable[[], Any]) -> tuple[int, int, int, int]:
    """Functions, files and turns back of some work, and turns back to folders."""
    seen: set[tuple[str, str]] = set()
    path: list[str] = []

    def look(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        # Bodies of classes, which run when a module is imported late, are no functions that anybody follows.
        body = not code.co_flags & inspect.CO_OPTIMIZED
        if event != "call" or body or not code.co_filename.startswith(ROOTS) or code.co_name.startswith("<"):
            return
        key = (code.co_filename, code.co_qualname)
        if key not in seen:
            seen.add(key)
            path.append(code.co_filename)

    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(None)
    # A file that lies in no folder is a part by itself.
    folders = [
        (root, file.removeprefix(root).split(os.sep)[0]) for file in path for root in ROOTS if file.startswith(root)
    ]
    return len(seen), len(set(path)), turns(path), turns(folders)


def turns(path: list[Any]) -> int:
    """How often a path goes back to a place that it left before."""
    return len(list(groupby(path))) - len(set(path))


def main() -> None:
    """The walks."""
    warnings.simplefilter("ignore")

    def build(lots: bool) -> dro.DecisionProblem:
        y = dro.Uncertain(2, support=dro.support.Nonnegative())
        x, whole = cp.Variable(2, nonneg=True), cp.Variable(2, boolean=True)
        stock = x + 2 * whole if lots else x
        cost = cp.sum(x) + cp.sum(cp.maximum(4 * (y - stock), stock - y)) + (3.8 * cp.sum(whole) if lots else 0)
        return dro.DecisionProblem(cost, [], dro.MomentSet(y, [dro.moments.Norm(1), dro.moments.SquaredNorm()]))

    theta = torch.tensor([[3.0, 4.0, 0.5, 3.0, 4.0, 0.5]], dtype=torch.float64, requires_grad=True)
    rng = np.random.default_rng(0)
    Z = rng.uniform(size=(24, 1))
    Y = 3 + Z + np.abs(rng.standard_normal((24, 2)))
    plain, lots, again = build(False), build(True), build(True)
    layers = [dro.DROLayer(plain), dro.DROLayer(lots, enumerate_up_to=0)]

    def decide(layer: dro.DROLayer) -> None:
        layer(theta).expected(lambda x: layer.problem.loss(x, torch.as_tensor(Y[:1]))).sum().backward()

    def fit(problem: dro.DecisionProblem, **trainer: float) -> None:
        try:
            where = dro.Trainer(progress=False, **trainer)
            few = {"pretraining": dro.Stage(1), "training": dro.Stage(1), "trainer": where}
        except AttributeError:  # before learners were made of objects
            few = {"pretrain_epochs": 1, "epochs": 1, "progress": False}
        dro.DecisionFocusedLearner(problem, **few).fit(Z, Y)

    walks = {
        "compile": lambda: build(False),
        "a continuous decision": lambda: decide(layers[0]),
        "a mixed-integer decision": lambda: decide(layers[1]),
        "fit": lambda: fit(lots),
        "fit that compares nothing": lambda: fit(again, budget=0.0),
    }
    print(f"{'walk':<28}{'functions':>10}{'files':>8}{'turns back':>12}{'to folders':>12}")
    for name, work in walks.items():
        print(f"{name:<28}" + "".join(f"{n:>{w}}" for n, w in zip(walk(work), (10, 8, 12, 12), strict=True)))


if __name__ == "__main__":
    main()
