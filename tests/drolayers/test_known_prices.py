"""Known data in the costs of a second stage: a decision rule, against problems that are built with constants."""

import cvxpy as cp
import numpy as np
import pytest
import torch

import drolayers as dro
from tests.drolayers.test_known_supports import BATCH, DIM, HI, nominal_for, row, theta_for

# Where a quantile of the atoms is no matter of taste: there values have kinks in the prices.
PRICES = torch.tensor([[4.3, 3.2], [2.2, 6.1], [3.6, 2.8], [9.0, 1.6]], dtype=torch.float64)
W = np.hstack([np.eye(DIM), -np.eye(DIM)])


def written(price, x, y):
    short, left = cp.Variable(DIM, nonneg=True), cp.Variable(DIM, nonneg=True)
    return dro.recourse(
        cp.Minimize(price @ short + 0.5 * cp.sum(left)), [short >= y - x, left >= x - y], method="decision_rule"
    )


def shifted(price, x, y):
    """A lower bound that is not zero, a variable without one, and a price outside of the second stage."""
    short, free = cp.Variable(DIM), cp.Variable(DIM)
    rows = [short >= y - x, short >= 0.5, free == short - 0.25 * x]
    goal = cp.Minimize(price @ short + 0.1 * cp.multiply(price, free)[0] + price @ x + 2.0 * cp.sum(free))
    return dro.recourse(goal, rows, method="decision_rule")


def folded(price, x, y):
    z = cp.Variable(DIM)
    return dro.recourse(
        cp.Minimize(cp.multiply(price, cp.pos(z))[0] + price[1] * cp.abs(z[1])), [z >= y - x], method="decision_rule"
    )


def matrices(price, x, y):
    costs = (
        cp.hstack([price, np.ones(DIM)]) if isinstance(price, cp.Expression) else np.concatenate([price, np.ones(DIM)])
    )
    return dro.recourse(costs, W, y - x, method="decision_rule")


STAGES = {f.__name__: f for f in (written, shifted, folded, matrices)}
SETS = {
    "squared": lambda y: dro.MomentSet(y, [dro.moments.SquaredNorm()]),
    "variance": lambda y: dro.MomentSet(y, [dro.moments.Norm(1)]),
    "order 1": lambda y: dro.Wasserstein(y, 3),
    "order 2": lambda y: dro.Wasserstein(y, 3, norm=2, order=2),
}


def problem(stage: str, ambiguity: str, price, integer: bool = False, support=None):
    y = dro.Uncertain(DIM, support=support or dro.support.Box(0.0, 5.0))
    x = cp.Variable(DIM, nonneg=True, integer=integer, name="x")
    return dro.DecisionProblem(cp.sum(x) + STAGES[stage](price, x, y), [x <= 6], SETS[ambiguity](y))


def parameter() -> cp.Parameter:
    return cp.Parameter(DIM, nonneg=True, name="price")


@pytest.mark.parametrize("ambiguity", SETS)
@pytest.mark.parametrize("stage", STAGES)
def test_values_and_gradients(stage: str, ambiguity: str) -> None:
    known = problem(stage, ambiguity, parameter())
    assert known.conservative
    assert known.known == {"price": (DIM,)}
    theta, nominal, prices = theta_for(known.ambiguity), nominal_for(known.ambiguity), PRICES.clone().requires_grad_()
    solution = known.solve(theta, nominal, known={"price": prices})
    assert bool(solution.ok.all())
    x = {known.variables[0]: torch.ones(BATCH, DIM).double()}
    worst = known.worst_case_cost(x, theta, nominal, known={"price": PRICES})
    for i in range(BATCH):
        constant = problem(stage, ambiguity, PRICES[i].numpy())
        found = constant.solve(theta[i : i + 1], row(nominal, i))
        assert float(solution.objective[i].detach()) == pytest.approx(float(found.objective[0]), abs=1e-6)
        at = {constant.variables[0]: torch.ones(1, DIM).double()}
        assert float(worst[i]) == pytest.approx(
            float(constant.worst_case_cost(at, theta[:1], row(nominal, i))[0]), abs=1e-6
        )
    solution.objective.sum().backward()
    step = 1e-4
    for k in range(DIM):
        shift = step * torch.eye(DIM, dtype=torch.float64)[k]
        up, down = (known.solve(theta, nominal, known={"price": PRICES + s * shift}).objective for s in (1, -1))
        torch.testing.assert_close(prices.grad[:, k], (up - down) / (2 * step), atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("stage", STAGES)
def test_the_loss_is_exact(stage: str) -> None:
    known, y = problem(stage, "squared", parameter()), torch.rand(BATCH, DIM, dtype=torch.float64) * 4
    x = {known.variables[0]: torch.rand(BATCH, 3, DIM, dtype=torch.float64) * 4}
    prices = PRICES.clone().requires_grad_()
    loss = known.loss(x, y, known={"price": prices})
    assert loss.shape == (BATCH, 3)
    for i in range(BATCH):
        constant = problem(stage, "squared", PRICES[i].numpy())
        expected = constant.loss({constant.variables[0]: x[known.variables[0]][i : i + 1]}, y[i : i + 1])
        torch.testing.assert_close(loss[i : i + 1].detach(), expected, atol=1e-8, rtol=1e-8)
    loss.sum().backward()
    step = 1e-5
    for k in range(DIM):
        shift = step * torch.eye(DIM, dtype=torch.float64)[k]
        up, down = (known.loss(x, y, known={"price": PRICES + s * shift}).sum(1) for s in (1, -1))
        torch.testing.assert_close(prices.grad[:, k], (up - down) / (2 * step), atol=1e-6, rtol=1e-6)


def test_rules_are_bounds() -> None:
    """Between the exact worst case of the same second stage and the rule without room."""
    known, theta = (
        problem("written", "squared", parameter()),
        torch.tensor([[1.4, 1.2, 1.1]]).double().expand(BATCH, -1),
    )
    found = known.solve(theta, known={"price": PRICES}).objective
    for i in range(BATCH):
        y, x = dro.Uncertain(DIM, support=dro.support.Box(0.0, 5.0)), cp.Variable(DIM, nonneg=True)
        cost = cp.sum(x) + PRICES[i].numpy() @ cp.pos(y - x) + 0.5 * cp.sum(cp.pos(x - y))
        exact = dro.DecisionProblem(cost, [x <= 6], SETS["squared"](y)).solve(theta[:1]).objective
        assert float(exact[0]) - 1e-6 <= float(found[i]) <= 1.5 * float(exact[0])


def test_integers_and_known_bounds() -> None:
    hi = cp.Parameter(DIM, nonneg=True, name="hi")
    known = problem("written", "squared", parameter(), integer=True, support=dro.support.Box(0.0, hi))
    theta = theta_for(known.ambiguity)
    decision = dro.DROLayer(known).eval()(theta, known={"price": PRICES, "hi": HI})
    for i in range(BATCH):
        constant = problem("written", "squared", PRICES[i].numpy(), True, dro.support.Box(0.0, HI[i].numpy()))
        expected = dro.DROLayer(constant).eval()(theta[:1])
        assert float(decision.value[i]) == pytest.approx(float(expected.value[0]), abs=1e-6)


@pytest.mark.parametrize("ambiguity", SETS)
@pytest.mark.parametrize("method", ["vertices", "decision_rule"])
def test_second_stages_under_known_bounds(method: str, ambiguity: str) -> None:
    hi = cp.Parameter(DIM, nonneg=True, name="hi")

    def build(support):
        y, x, z = dro.Uncertain(DIM, support), cp.Variable(DIM, nonneg=True, name="x"), cp.Variable(DIM, nonneg=True)
        cost = cp.sum(x) + dro.recourse(cp.Minimize(3.0 * cp.sum(z)), [z >= y - x, cp.sum(z) <= 4.0], method=method)
        return dro.DecisionProblem(cost, [x <= 9], SETS[ambiguity](y))

    known = build(dro.support.Box(0.0, hi))
    theta, nominal = theta_for(known.ambiguity), nominal_for(known.ambiguity)
    found = known.solve(theta, nominal, known={"hi": HI})
    for i in range(BATCH):
        expected = build(dro.support.Box(0.0, HI[i].numpy())).solve(theta[:1], row(nominal, i))
        assert float(found.objective[i]) == pytest.approx(float(expected.objective[0]), abs=1e-6)


def test_sentences() -> None:
    y, x, z, price = dro.Uncertain(DIM), cp.Variable(DIM), cp.Variable(DIM, nonneg=True), parameter()

    def build(goal, rows, **options):
        return dro.DecisionProblem(dro.recourse(goal, rows, **options), [x <= 5, x >= 0], SETS["squared"](y))

    with pytest.warns(UserWarning, match=r"known data \(price\).*decision rule"):
        build(cp.Minimize(price @ z), [z >= y - x])
    with pytest.raises(dro.ModelError, match=r"known data \(price\).*use method='decision_rule'"):
        build(cp.Minimize(price @ z), [z >= y - x], method="vertices")
    for goal, rows in (
        (cp.Minimize(cp.sum(z)), [cp.multiply(price, z) >= y - x]),
        (cp.Minimize(cp.sum(cp.pos(cp.multiply(price, z) - 1))), [z >= y - x]),
    ):
        with pytest.raises(dro.ModelError, match="multiplies its variables by price in a constraint"):
            build(goal, rows)
    with pytest.raises(dro.ModelError, match="multiplies its variables by y in"):
        build(cp.Minimize(y @ z), [z >= y - x])
    with pytest.raises(dro.ModelError, match="not convex"):
        build(cp.Minimize(cp.Parameter(DIM, name="free") @ cp.pos(z)), [z >= y - x])


def test_a_second_stage_that_earns_without_end() -> None:
    price = cp.Parameter(name="price")
    y, x, z = dro.Uncertain(1, dro.support.Box(0.0, 2.0)), cp.Variable(1, nonneg=True), cp.Variable(1)
    cost = cp.sum(x) + dro.recourse(cp.Minimize(price * z[0]), [z >= y - x, z >= 0], method="decision_rule")
    known = dro.DecisionProblem(cost, [x <= 3], dro.MomentSet(y, [dro.moments.SquaredNorm()]))
    theta = torch.tensor([[1.0, 0.2]]).double()
    solution = known.solve(theta, known={"price": torch.tensor([2.0, -1.0])})
    assert solution.ok.tolist() == [True, False]
    loss = known.loss(
        {x: torch.ones(2, 1).double()}, torch.ones(2, 1).double(), known={"price": torch.tensor([2.0, -1.0])}
    )
    assert loss.tolist() == [1.0, -np.inf]
