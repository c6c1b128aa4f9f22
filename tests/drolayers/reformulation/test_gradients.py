"""Gradients of f and of x* with respect to every parameter of every set, against central differences."""

from __future__ import annotations

from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

import drolayers as dro
from conelayers import Engine, make_engine
from drolayers import support as s
from tests.drolayers.ambiguity.sets import SETS, SetCase
from tests.drolayers.reformulation.differences import STEP, analytic, central, gap
from tests.drolayers.reformulation.problems import JOINT, STOCK, WEDGE

ENGINE: Engine = make_engine()
TIGHT = replace(ENGINE, solver=ENGINE.solver.with_tolerance(1e-12))
TARGET = np.array([0.4, 0.1])


def _joint(x: cp.Variable, y: dro.Uncertain) -> cp.Expression:
    return cp.max(JOINT @ y + STOCK @ x) + 0.5 * cp.sum_squares(x - TARGET)


def _items(x: cp.Variable, y: dro.Uncertain) -> cp.Expression:
    return cp.sum(cp.maximum(2 * (y - x), x - y)) + 0.2 * cp.sum_squares(x - TARGET)


def _portfolio(x: cp.Variable, y: dro.Uncertain) -> cp.Expression:
    return -y @ x + 0.5 * cp.sum_squares(x)


PROBLEMS = {
    "portfolio": (s.Reals(), _portfolio),
    "joint": (s.Polyhedron(*WEDGE), _joint),
    "items": (s.Box([-0.5, 0.0], [3.0, 3.5]), _items),
}


class Setting:
    """A problem of x and all that can be moved: θ, and the nominal atoms and weights of a ball."""

    def __init__(self, kind: SetCase, name: str) -> None:
        support, cost = PROBLEMS[name]
        y = dro.Uncertain(2, support=support)
        self.x = cp.Variable(2, name="x")
        self.kind = kind
        self.problem = dro.DecisionProblem(cost(self.x, y), [], kind.make(y))
        names = self.problem.ambiguity.parameters
        theta = torch.as_tensor(np.concatenate([np.ravel(kind.parameters(1, seed=3)[0][n]) for n in names]))
        self.size = theta.numel()
        nominal = kind.nominal(1, seed=4)
        self.at = theta if nominal is None else torch.cat([theta, nominal[0].flatten(), nominal[1].flatten().log()])

    def split(self, at: Tensor) -> tuple[Tensor, dro.Nominal | None]:
        """θ, and atoms with weights that add up to one."""
        if not self.kind.around:
            return at, None
        theta, atoms, logits = at.split([self.size, 6, 3], dim=1)
        return theta, (atoms.reshape(-1, 3, 2), logits.softmax(1))

    def optimum(self, at: Tensor) -> Tensor:
        """x* and f, side by side."""
        solution = self.problem.solve(*self.split(at), engine=TIGHT)
        assert bool(solution.ok.all()), solution.statuses
        return torch.cat([solution.variable(self.x), solution.objective[:, None]], 1)

    def cost(self, at: Tensor) -> Tensor:
        """f at a given decision, which stands first."""
        return self.problem.worst_case_cost({self.x: at[:, :2]}, *self.split(at[:, 2:]))[:, None]


# Two bounds that meet leave no room for differences.
KINDS = [kind for kind in SETS if kind.name != "mean equality"]


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_gradients(kind: SetCase) -> None:
    moved = [differentiate(kind, name) > 1e-2 for name in PROBLEMS]
    # Nothing is shown by gradients of zero.
    assert sum(moved) >= len(moved) / 2


def differentiate(kind: SetCase, name: str) -> float:
    """Compare all gradients of one problem; returns how much its solution moves."""
    setting = Setting(kind, name)
    # Solvers of exponential cones leave more noise in x*: there a larger step.
    step = 2 * STEP if kind.divergence in ("kl", "burg") else STEP
    found, expected = analytic(setting.optimum, setting.at), central(setting.optimum, setting.at, step)
    # f is solved for more accurately than x*, so that its differences bear a smaller step.
    assert gap(found[2], central(setting.optimum, setting.at, 2e-4)[2]) < 1e-4, f"f, {name}"
    assert gap(found[:2], expected[:2]) < 5e-4, f"x*, {name}"
    moves = float(expected[:2].abs().max())
    decision = torch.cat([torch.tensor([0.35, 0.55], dtype=torch.float64), setting.at])
    found, expected = analytic(setting.cost, decision), central(setting.cost, decision, 2e-4)
    assert gap(found[:, :2], expected[:, :2]) < 1e-4, f"f by the decision, {name}"
    assert gap(found[:, 2:], expected[:, 2:]) < 1e-4, f"f of a given decision, {name}"
    return moves
