"""Pictures show the numbers that the library computes, on the axes that they are given."""

from __future__ import annotations

import cvxpy as cp
import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

import drolayers as dro
from drolayers import plot
from tests.drolayers.learning.small import learner, sales, shop

mpl.use("Agg")


def one_item(
    moments: list | None = None, price: float = 0.5
) -> tuple[dro.DecisionProblem, cp.Variable, dict[str, torch.Tensor]]:
    """A newsvendor of one item under a mean and a variance."""
    y = dro.Uncertain(1)
    x = cp.Variable(nonneg=True, name="x")
    cost = price * x + 2.0 * cp.pos(y[0] - x)
    problem = dro.DecisionProblem(cost, [], dro.MomentSet(y, moments or [dro.moments.SquaredNorm()]))
    theta = {"0.mu": torch.tensor([[3.0], [4.0]]).double(), "0.sigma": torch.tensor([1.0, 2.0]).double()}
    return problem, x, theta


def two_items(
    size: int = 5,
) -> tuple[dro.DecisionProblem, cp.Variable, torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """Two items under a ball."""
    y, x = dro.Uncertain(2, support=dro.support.Nonnegative()), cp.Variable(2, nonneg=True, name="x")
    problem = dro.DecisionProblem(cp.sum(x) + cp.sum(cp.pos(3.0 * (y - x))), [], dro.Wasserstein(y, size))
    atoms = torch.as_tensor(np.random.default_rng(0).uniform(1, 3, (2, size, 2)))
    return problem, x, torch.full((2, 1), 0.3).double(), (atoms, torch.full((2, size), 1.0 / size).double())


def panel() -> Axes:
    return Figure().subplots()


def stems(axes: Axes) -> list[np.ndarray]:
    """Place and height of every stem, collection by collection."""
    found = [c.get_segments() for c in axes.collections if isinstance(c, LineCollection)]
    return [np.array([line[1] for line in lines]) for lines in found]


def test_stems_are_the_worst_distribution() -> None:
    problem, x, theta = one_item()
    decision = dro.DROLayer(problem)(theta)
    nominal = torch.tensor([[[2.5], [3.5]]] * 2).double(), torch.full((2, 2), 0.5).double()
    axes = panel()
    assert plot.worst_case(problem, decision, theta, nominal, item=1, axes=axes) is axes
    around, worst = stems(axes)
    atoms, mass = problem.worst_case_distribution({x: decision.best[x]}, theta)
    np.testing.assert_allclose(around, [[2.5, 0.5], [3.5, 0.5]])
    order = atoms[1, :, 0].argsort()
    np.testing.assert_allclose(worst, np.stack([atoms[1, order, 0], mass[1, order]], 1), atol=1e-6)
    np.testing.assert_allclose(worst[:, 1].sum(), 1.0, atol=1e-6)


def test_two_coordinates_are_scattered_with_areas_as_probabilities() -> None:
    problem, x, theta, nominal = two_items()
    axes = panel()
    assert plot.worst_case(problem, {x: torch.full((2, 2), 2.0).double()}, theta, nominal, axes=axes) is axes
    around, worst = axes.collections
    np.testing.assert_allclose(around.get_offsets(), nominal[0][0])
    sizes = np.asarray(worst.get_sizes())
    np.testing.assert_allclose(sizes.sum(), np.asarray(around.get_sizes()).sum(), rtol=1e-6)


def test_the_edge_of_a_shape_is_drawn() -> None:
    """All its points lie on the edge, and none of the shape beyond them, in whatever two coordinates."""
    y, x = dro.Uncertain(3), cp.Variable(3)
    factor = torch.tensor([[[1.0, 0.2, 0.4], [0.0, 0.5, -0.3], [0.3, 0.1, 0.8]]]).double()
    sizes = {"box": [0.5, 1.0, 2.0], "budget": [0.5, 1.0, 2.0], "ellipsoid": factor[0].tolist()}
    for ambiguity in (*(dro.Outcomes(y, kind) for kind in sizes), dro.MeanCovariance(y, gamma1=0.1)):
        problem = dro.DecisionProblem(cp.sum_squares(x) + cp.sum(cp.pos(y - x)), [], ambiguity)
        size = torch.tensor(sizes[getattr(ambiguity, "shape", "ellipsoid")])[None].double()
        theta = ambiguity.pack(dict(zip(ambiguity.parameters, (torch.ones(1, 3).double(), size), strict=True)))
        axes = panel()
        plot.worst_case(problem, {x: torch.zeros(1, 3)}, theta, coordinates=[2, 0], axes=axes)
        edge = np.asarray(axes.lines[0].get_data()).T - 1.0
        rows = factor[0, [2, 0]].numpy()
        if "factor" in ambiguity.parameters:
            np.testing.assert_allclose(np.einsum("ni,ij,nj->n", edge, np.linalg.inv(rows @ rows.T), edge), 1.0)
        else:
            u = abs(edge / [2.0, 0.5])
            scores = u.max(1) if ambiguity.shape == "box" else np.maximum(u.max(1), u.sum(1) / 3**0.5)
            np.testing.assert_allclose(scores, 1.0)


def test_many_coordinates_take_one_panel_each_and_some_can_be_chosen() -> None:
    y, x = dro.Uncertain(3), cp.Variable(3, nonneg=True)
    problem = dro.DecisionProblem(cp.sum(x) + cp.sum(2 * cp.pos(y - x)), [], dro.MomentSet.grouped(y, 1))
    theta = torch.tensor([[1.0, 2.0, 3.0, 0.5, 0.5, 0.5]]).double()
    decision = dro.DROLayer(problem)(theta)
    new = plot.worst_case(problem, decision, theta)
    assert isinstance(new, list)
    assert [a.get_xlabel() for a in new] == ["y[0]", "y[1]", "y[2]"]
    for k, axes in enumerate(new):
        (worst,) = stems(axes)
        # The worst distribution uses up its bound.
        np.testing.assert_allclose((worst[:, 0] - float(theta[0, k])) ** 2 @ worst[:, 1], 0.5, atol=1e-5)
    mpl.pyplot.close(new[0].figure)
    axes = panel()
    plot.worst_case(problem, decision, theta, coordinates=[2, 0], axes=axes)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("y[2]", "y[0]")


def test_escaping_mass_is_an_arrow() -> None:
    problem, x, theta = one_item([dro.moments.Norm(1)])
    axes = panel()
    plot.worst_case(problem, {x: torch.tensor([9.0, 9.0]).double()}, theta, axes=axes)
    assert len(axes.texts) == 1
    axes = panel()
    two, x2, theta2, nominal = two_items()
    plot.worst_case(two, {x2: torch.full((2, 2), 9.0).double()}, theta2, nominal, axes=axes)
    assert len(axes.texts) >= 1


def test_candidates_are_drawn_where_they_cost_and_as_high_as_they_are_likely() -> None:
    made = shop()
    theta = torch.tensor([[2.5, 2.5, 0.5], [2.0, 3.0, 0.5]]).double()
    decision = dro.DROLayer(made.problem)(theta)
    axes = panel()
    assert plot.candidates(decision, item=1, axes=axes) is axes
    (drawn,) = stems(axes)
    assert sorted(t.get_text() for t in axes.texts) == ["00", "01", "10", "11"]
    order = drawn[:, 0].argsort()
    expected = torch.stack([decision.objective[1], decision.probabilities[1]], 1)
    np.testing.assert_allclose(drawn[order], expected[expected[:, 0].argsort()].detach(), atol=1e-9)


def test_a_point_drawn_twice_is_shown_once() -> None:
    made = shop()
    decision = dro.DROLayer(made.problem)(torch.tensor([[2.5, 2.5, 0.5]]).double())
    doubled = dro.Decision(
        decision.best,
        decision.value,
        decision.status,
        {v: torch.cat([c, c], 1) for v, c in decision.candidates.items()},
        torch.cat([decision.objective] * 2, 1),
        torch.cat([decision.probabilities] * 2, 1) / 2,
        decision.temperature,
    )
    one, two = panel(), panel()
    plot.candidates(decision, axes=one)
    plot.candidates(doubled, axes=two)
    np.testing.assert_allclose(stems(one)[0], stems(two)[0], atol=1e-12)


def test_the_price_of_robustness_rises_with_the_bound() -> None:
    problem, x, theta = one_item()
    values = np.linspace(0.1, 4.0, 7)
    axes = plot.price_of_robustness(problem, theta, "0.sigma", values, panel(), item=1)
    curve = axes.lines[0].get_xydata()
    np.testing.assert_allclose(curve[:, 0], values)
    exact = dro.DROLayer(problem)({"0.mu": torch.full((7, 1), 4.0).double(), "0.sigma": torch.as_tensor(values)})
    np.testing.assert_allclose(curve[:, 1], exact.value, rtol=1e-6)
    assert (np.diff(curve[:, 1]) > 0).all()
    assert axes.get_xlabel() == "0.sigma"
    shown = plot.price_of_robustness(problem, theta, "0.sigma", values, panel(), item=1, show="decision")
    np.testing.assert_allclose(shown.lines[0].get_ydata(), exact.best[x], rtol=1e-5)


def test_the_nominal_cost_lies_below_the_worst_case() -> None:
    problem, _, theta, nominal = two_items()
    axes = plot.price_of_robustness(problem, theta, "radius", [1e-6, 0.2, 0.8], panel(), nominal=nominal)
    worst, mean = (line.get_ydata() for line in axes.lines)
    assert worst[0] == pytest.approx(mean[0], abs=1e-4)
    assert (worst[1:] > mean[1:] + 1e-3).all()


def test_training_curves_mark_the_epoch_that_was_kept() -> None:
    made = shop(False)
    Z, Y = sales()
    fitted = learner(made.problem, training__epochs=3).fit(Z, Y)
    for stage, epochs in (("decision", 3), ("prediction", 2)):
        axes = plot.training(fitted, panel(), stage=stage)
        assert [len(line.get_xdata()) for line in axes.lines] == [epochs, epochs]
        kept = axes.collections[0].get_offsets()[0]
        losses = axes.lines[1].get_ydata()
        np.testing.assert_allclose(kept, [1 + np.argmin(losses), np.min(losses)])
    assert plot.training(fitted, panel()).get_ylabel() == "decision loss"


def test_what_cannot_be_drawn_is_one_sentence() -> None:
    problem, _, theta = one_item()
    decision = dro.DROLayer(problem)(theta)
    with pytest.raises(dro.ModelError, match="no item 2"):
        plot.worst_case(problem, decision, theta, item=2)
    with pytest.raises(dro.ModelError, match="coordinates"):
        plot.worst_case(problem, decision, theta, coordinates=[1])
    with pytest.raises(dro.ModelError, match="1 Matplotlib axes"):
        plot.worst_case(problem, decision, theta, axes=[panel(), panel()])
    with pytest.raises(dro.ModelError, match="no parameter"):
        plot.price_of_robustness(problem, theta, "sigma", [1.0])
    with pytest.raises(dro.ModelError, match="show"):
        plot.price_of_robustness(problem, theta, "0.sigma", [1.0], show="both")  # type: ignore[arg-type]
    with pytest.raises(dro.ShapeError, match="values"):
        plot.price_of_robustness(problem, theta, "0.sigma", [])
    with pytest.raises(dro.ModelError, match="no training history"):
        plot.training(learner(problem))
    with pytest.raises(dro.ModelError, match="dict by variable"):
        plot.worst_case(problem, 3.0, theta)  # type: ignore[arg-type]
    empty = {"0.mu": theta["0.mu"], "0.sigma": -theta["0.sigma"]}
    with pytest.raises(dro.ModelError, match="set is empty"):
        plot.worst_case(problem, decision, empty)
    with pytest.raises(dro.ModelError, match="no candidates"):
        plot.candidates(dro.DROLayer(problem)(empty))
    with pytest.raises(dro.ModelError, match="DROLayer"):
        plot.candidates(3.0)  # type: ignore[arg-type]


def test_pictures_of_promises_show_what_was_found() -> None:
    y, x = dro.Uncertain(2, support=dro.support.Nonnegative()), cp.Variable(2, nonneg=True)
    rules = [dro.chance(y <= x + 0.2, 0.7), dro.expected(cp.sum(cp.pos(y - x))) <= 1.0]
    problem = dro.DecisionProblem(cp.sum(x), rules, dro.MomentSet(y, [dro.moments.SquaredNorm()]))
    model, fresh = learner(problem, projection=None).fit(*sales(40)), sales(30, 1)
    with pytest.raises(dro.ModelError, match="not calibrated by coverage"):
        plot.coverage(model, *fresh)
    model.calibrate(*sales(19, 2), coverage=0.9)
    axes = plot.coverage(model, *fresh, levels=[0.5, 0.9, 0.99], axes=panel())
    # Of 19 rows there is no scale for 0.99.
    (points,) = [c for c in axes.containers if c.has_yerr]
    assert points[0].get_xdata().tolist() == [0.5, 0.9]
    assert points[0].get_ydata()[1] == pytest.approx(model.coverage(*fresh).rate)
    axes = plot.worst_case_costs(model, *fresh, axes=panel())
    rows, means = (c.get_offsets() for c in axes.collections)
    np.testing.assert_allclose(rows[:, 1], model.decide(fresh[0])[x].sum(1))
    np.testing.assert_allclose(means[0], [model.decision(fresh[0]).value.mean(), model.loss(*fresh)])
    axes = plot.violations(model, *fresh, axes=panel())
    (points,) = [c for c in axes.containers if c.has_yerr]
    assert points[0].get_xdata()[0] == pytest.approx(0.3)
    assert points[0].get_ydata()[0] == pytest.approx(model.violations(*fresh)[rules[0]])
    axes = plot.training(model, panel(), show="violations")
    rates = [row["val_violations/1"] for row in model.history_["decision"]]
    assert any(np.allclose(line.get_ydata(), rates) for line in axes.lines)
    with pytest.raises(dro.ModelError, match="There is no dro"):
        plot.violations(learner(shop(False).problem, training=None).fit(*sales(40)), *fresh)


SHAPES = {
    "box": lambda y: dro.Outcomes(y),
    "ellipsoid": lambda y: dro.Outcomes(y, "ellipsoid"),
    "budget": lambda y: dro.Outcomes(y, "budget", budget=0.5),
    "squared": lambda y: dro.MomentSet(y, [dro.moments.SquaredNorm()]),
    "norm": lambda y: dro.MomentSet(y, [dro.moments.Norm(1)]),
    "variances": lambda y: dro.MomentSet(y, [dro.moments.Variance()]),
}


def reach(kind: str, theta: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Centre of the second coordinate and how far a set reaches from it, in closed form."""
    if kind in ("box", "budget"):
        return theta["centre"][:, 1], theta["radius"][:, 1] * (0.5 if kind == "budget" else 1.0)
    if kind == "ellipsoid":
        return theta["centre"][:, 1], np.linalg.norm(theta["factor"][:, 1], axis=1)
    sigma = theta["0.sigma"][:, 1] if kind == "variances" else theta["0.sigma"]
    return theta["0.mu"][:, 1], sigma if kind == "norm" else np.sqrt(sigma)


@pytest.mark.parametrize("kind", SHAPES)
def test_sets_over_a_feature(kind: str) -> None:
    """The interval of a coordinate in closed form, within the support; which outcomes are in their sets."""
    y, x = dro.Uncertain(2, support=dro.support.Box(lo=[-9.0, 2.4])), cp.Variable(2, nonneg=True)
    problem = dro.DecisionProblem(cp.sum(x) + 3 * cp.sum(cp.pos(y - x)), [], SHAPES[kind](y))
    # Sets learn from outcomes in the support; the picture shows others, too.
    (Z_fit, Y_fit), (Z_scale, Y_scale) = sales(60), sales(30, 1)
    model = learner(problem, projection=None, training=None, pretraining__epochs=8).fit(Z_fit, Y_fit.clip([-9, 2.4]))
    model.calibrate(Z_scale, Y_scale.clip([-9, 2.4]), coverage=0.8)
    Z, Y = sales(40, 2)
    axes = panel()
    assert plot.sets(model, Z, Y, axes, coordinate=1, feature=1) is axes
    (drawn,) = (c.get_segments() for c in axes.collections if hasattr(c, "get_segments"))
    lines = np.array(drawn)
    centre, away = reach(kind, model.predict_set(Z))
    np.testing.assert_allclose(lines[:, :, 0], np.stack([Z[:, 1]] * 2, 1))
    np.testing.assert_allclose(lines[:, 0, 1], np.maximum(centre - away, 2.4), atol=1e-5)
    np.testing.assert_allclose(lines[:, 1, 1], centre + away, atol=1e-5)
    inside, outside = (c.get_offsets() for c in axes.collections if not hasattr(c, "get_segments"))
    assert len(inside) / len(Z) == model.coverage(Z, Y).rate
    assert sorted(np.vstack([inside, outside]).tolist()) == sorted(np.stack([Z[:, 1], Y[:, 1]], 1).tolist())
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("z[1]", "y[1]")


def test_sets_that_have_no_interval_say_so() -> None:
    y, x, top = dro.Uncertain(2), cp.Variable(2, nonneg=True), cp.Parameter(name="top")
    Z, Y = sales(30)
    ball, half = (
        learner(dro.DecisionProblem(cp.sum(x) + y @ np.ones(2), [], each), training=None, projection=None).fit(Z, Y)
        for each in (dro.Wasserstein(y, 5), dro.MomentSet(y, [dro.moments.Linear(np.ones(2))]))
    )
    with pytest.raises(dro.ModelError, match="holds no outcomes by itself"):
        plot.sets(ball, Z, Y)
    with pytest.raises(dro.ModelError, match=r"no interval of y\[0\]: it is unbounded below in 30 of 30 rows"):
        plot.sets(half, Z, Y)
    with pytest.raises(dro.ModelError, match="coordinate must be one of"):
        plot.sets(half, Z, Y, coordinate=2)
    with pytest.raises(dro.ModelError, match="feature must be one of"):
        plot.sets(half, Z, Y, feature="price")
    # Known data in the support, and columns by name.
    y = dro.Uncertain(2, support=dro.support.Box(0.0, top))
    frame, known = pd.DataFrame(Z, columns=["price", "day"]), {"top": np.linspace(4.0, 5.0, 30)}
    problem = dro.DecisionProblem(cp.sum(x) + 3 * cp.sum(cp.pos(y - x)), [], dro.Outcomes(y, radius=[9.0, 9.0]))
    model = learner(problem, training=None).fit(frame, Y, known=known)
    axes = plot.sets(model, frame, Y, panel(), feature="day", known=known)
    lines = np.array(axes.collections[0].get_segments())
    np.testing.assert_allclose(lines[:, :, 1], np.stack([np.zeros(30), known["top"]], 1), atol=1e-6)
    assert axes.get_xlabel() == "day"
