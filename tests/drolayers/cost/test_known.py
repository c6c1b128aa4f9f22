"""Known data in a cost: coefficients of every product, what is refused, and how the refusal reads."""

from __future__ import annotations

from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest
import torch

import drolayers as dro
from conelayers.errors import ModelError
from drolayers import moments as m
from drolayers.cost.coefficients import coefficients
from drolayers.cost.parse import parse


class Random:
    """Random vectors of three entries that are affine in x, in y and in known data, with zeros among the constants."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.y, self.x = dro.Uncertain(3), cp.Variable(3)
        self.c, self.M, self.b = cp.Parameter(3, name="c"), cp.Parameter((3, 3), name="M"), cp.Parameter(name="b")

    def constant(self, *shape: int) -> np.ndarray:
        """Mostly zeros."""
        return self.rng.choice([0.0, 0.0, 1.0, -2.0], shape)

    def leaf(self) -> cp.Expression:
        """A product, or a sum."""
        c, M, b, y, x = self.c, self.M, self.b, self.y, self.x
        made = [
            cp.multiply(c, y),
            cp.multiply(cp.multiply(c, y), x),
            cp.multiply(M @ y, x),
            M @ x,
            M.T @ y,
            b * y,
            b * x,
            y - x,
            c + y,
        ]
        return made[self.rng.integers(len(made))]

    def expression(self, depth: int) -> cp.Expression:
        """A tree of atoms."""
        if not depth:
            return self.leaf()
        e = self.expression(depth - 1)
        made: list[Callable[[], cp.Expression]] = [
            lambda: cp.multiply(self.constant(3), e),
            lambda: self.constant(3, 3) @ e,
            lambda: e + self.expression(depth - 1),
            lambda: cp.hstack([e[:2], self.expression(depth - 1)[2]]),
            lambda: cp.sum(e) * self.constant(3),
            lambda: -e,
            lambda: cp.reshape(cp.vstack([e, self.leaf()]), (6,), order="C")[::2],
        ]
        return made[self.rng.integers(len(made))]()


@pytest.mark.parametrize("seed", range(40))
def test_coefficients_of_random_expressions(seed: int) -> None:
    here = Random(seed)
    e = here.expression(int(here.rng.integers(1, 5)))
    found = coefficients([e], [here.x], here.y, [here.c, here.M, here.b])
    for leaf in (here.x, here.y, here.c, here.M, here.b):
        leaf.value = here.rng.normal(size=leaf.shape)
    # A one at the end, where -1 points to.
    p = np.concatenate([here.c.value, here.M.value.ravel(order="F"), [here.b.value, 1.0]])
    x, y = np.append(here.x.value, 1.0), np.append(here.y.value, 1.0)
    total = np.zeros(3)
    np.add.at(total, found.row, found.value * p[found.factor] * x[found.column] * y[found.coordinate])
    np.testing.assert_allclose(total, e.value, atol=1e-10)


X = cp.Variable(3, nonneg=True, name="x")
Y = dro.Uncertain(3, dro.support.Nonnegative())
B, D, S = cp.Parameter(name="b"), cp.Parameter(name="d"), cp.Parameter(3, name="s")
W, V = cp.Parameter(nonneg=True, name="w"), cp.Parameter(nonneg=True, name="v")
SQUARE, SYMMETRIC = cp.Parameter((3, 3), name="Q"), cp.Parameter((3, 3), symmetric=True, name="Q")
LATE = cp.sum(cp.pos(Y - X))
RULE = dro.recourse(np.ones(6), np.hstack([np.eye(3), -np.eye(3)]), Y - X, method="decision_rule")


@pytest.mark.parametrize(
    ("cost", "said"),
    [
        (B * LATE, r"because of b \* .*or a maximum, is declared with cp.Parameter\(nonneg=True\)"),
        (S @ cp.pos(Y - X), r"because of s @ .*cp.Parameter\(nonneg=True\)"),
        (-W * LATE, "not convex"),
        (B * D * cp.sum(X) + LATE, "not affine in b and d: .*product.* a parameter of its own"),
        (B * B + LATE, "not affine in b"),
        (W * V * LATE, "not affine in w and v"),
        (W * (V * LATE), "not affine in w and v: .*product or quotient a parameter of its own"),
        (B * (S @ Y) + LATE, "not affine in b and s: .*product or quotient"),
        (cp.sum(X) / W + LATE, "not affine in w: .*quotient"),
        (cp.sum(Y) / W + LATE, "not affine in w: .*quotient"),
        (cp.exp(B) * cp.sum(X) + LATE, "not affine in b: .*function"),
        (cp.square(B) + LATE, "not affine in b"),
        # Where y may be negative, an epigraph of a function of known data could rise without end.
        (cp.pos(B) * Y[0] + LATE, r"maximum\(b, 0.0\).* not affine in b"),
        ((cp.abs(S) + X) @ Y, "not affine in s"),
        (cp.maximum(Y[0], B) * Y[1] + LATE, r"multiplies maximum\(y\[0\], b\) by y"),
        (Y @ SYMMETRIC @ X, r"Q has structure \['symmetric'\].*plain array"),
        (cp.diag(SQUARE) @ X + LATE, "the diagonal .* of a parameter: make the diagonal a parameter of its own"),
        (cp.sum(cp.pos(Y - cp.Variable(3, bounds=[0, S], name="v"))), "v is declared with bounds that are parameters"),
        (cp.Parameter(3, name="s") @ X + S @ X + LATE, "Several parameters are named s"),
    ],
    ids=str,
)
def test_what_is_refused(cost: cp.Expression, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        dro.DecisionProblem(cost, [X <= 5], dro.MomentSet(Y, [m.Norm(1)]))


@pytest.mark.parametrize(
    ("constraint", "said"),
    [
        (B * D * X <= 1, "Not DPP.*b . d: make what is computed from parameters alone a parameter of its own"),
        (X / W <= 1, "Not DPP.*a parameter of its own"),
        (W * cp.sum_squares(X - S) <= 1, "Not DPP.*as a variable of its own, v == x - s"),
        (cp.diag(SQUARE) @ X <= 1, "the diagonal .* of a parameter"),
        (SYMMETRIC @ X <= 1, "structure"),
    ],
    ids=str,
)
def test_what_is_refused_in_constraints(constraint: cp.Constraint, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        dro.DecisionProblem(LATE, [constraint], dro.MomentSet(Y, [m.Norm(1)]))


def test_products_of_nested_maxima() -> None:
    parsed = parse(W * cp.maximum(cp.sum(cp.pos(V * (Y - X))), S @ X, 1.0), Y)
    assert [p.name() for p in parsed.known] == ["w", "v", "s"]
    # w, w v, and w s_i: nothing else is multiplied.
    assert sorted(parsed.products.monomials) == [(0,), (0, 1), (0, 2), (0, 3), (0, 4)]


def test_costs_without_known_data_have_no_products() -> None:
    parsed = parse(LATE + cp.sum_squares(X), Y)
    assert parsed.known == ()
    assert len(parsed.products) == 0


def test_what_counts_nothing_in_a_second_stage_is_not_multiplied() -> None:
    short = cp.Variable(3)
    stage = dro.recourse(cp.Minimize(cp.sum(short)), [short >= V * Y - X - S, short >= 0], method="vertices")
    problem = dro.DecisionProblem(W * stage + cp.sum(X), [X <= 5], dro.MomentSet(Y, [m.Norm(1)]))
    assert set(problem.known) == {"w", "v", "s"}


def test_known_data_times_a_rule() -> None:
    """As with a constant in its place."""
    theta = torch.tensor([[1.0, 2.0, 1.5, 1.2]], dtype=torch.float64)
    ambiguity = dro.MomentSet(Y, [m.Norm(1)])
    told = dro.DecisionProblem(W * RULE + cp.sum(X), [X <= 5, X >= 0], ambiguity)
    constant = dro.DecisionProblem(1.7 * RULE + cp.sum(X), [X <= 5, X >= 0], ambiguity)
    found = told.solve(theta, known={"w": torch.tensor([1.7], dtype=torch.float64)})
    assert float(found.objective) == pytest.approx(float(constant.solve(theta).objective), rel=1e-7)
