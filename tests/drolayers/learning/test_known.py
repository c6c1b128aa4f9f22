"""Known data in learning: the learner with a stock on the shelf decides as one whose decision is the whole shelf."""

from __future__ import annotations

import csv
from io import StringIO
from pathlib import Path
from typing import Any

import cvxpy as cp
import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import drolayers as dro
from drolayers import baselines, plot
from drolayers.cli import app
from tests.drolayers.learning.small import learner, sales

mpl.use("Agg")


class Shelf:
    """Two items with a stock that is known: what is ordered comes on top of it."""

    def __init__(self, ball: bool = False) -> None:
        self.stock, self.price = cp.Parameter(2, name="stock"), cp.Parameter(nonneg=True, name="price")
        self.y, self.order = dro.Uncertain(2), cp.Variable(2, name="order")
        shelf = self.order + self.stock
        # The stock may be sold back at the price, so that only the shelf counts, but for what the stock is worth.
        cost = self.price * cp.sum(self.order) + cp.sum(cp.maximum(4.0 * (self.y - shelf), shelf - self.y))
        ambiguity = dro.Wasserstein(self.y, 5) if ball else dro.MomentSet(self.y, [dro.moments.SquaredNorm()])
        self.problem = dro.DecisionProblem(cost, [cp.sum(shelf) <= 20], ambiguity)


def data(count: int = 24, seed: int = 0) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed + 1)
    return *sales(count, seed), {"stock": rng.uniform(0, 2, (count, 2)), "price": rng.uniform(0.5, 2.0, count)}


@pytest.mark.parametrize("ball", [False, True])
def test_a_stock_that_can_be_sold_back_changes_the_order_and_not_the_shelf(ball: bool) -> None:
    """Trained with stocks and without: gradients do not feel them, and the shelves are the same."""
    here, (Z, Y, known) = Shelf(ball), data()
    empty = {**known, "stock": np.zeros((24, 2))}
    one, other = (learner(here.problem).fit(Z, Y, known=told) for told in (known, empty))
    shelf = one.decide(Z, known=known)[here.order] + known["stock"]
    # Gradients are clipped in units of the cost, which are not quite the same.
    np.testing.assert_allclose(shelf, other.decide(Z, known=empty)[here.order], atol=1e-3)
    # The loss differs by what the stock is worth.
    worth = (known["price"] * known["stock"].sum(1)).mean()
    assert one.loss(Z, Y, known) + worth == pytest.approx(other.loss(Z, Y, empty), abs=1e-3)
    assert one.score(Z, Y, known) == -one.loss(Z, Y, known)


def test_known_data_is_a_dict_or_a_frame(tmp_path: Path) -> None:
    here, (Z, Y, known) = Shelf(), data()
    frame = pd.DataFrame({"price": known["price"], "stock_2": known["stock"][:, 1], "stock_1": known["stock"][:, 0]})
    fitted = learner(here.problem).fit(Z, Y, known=frame)
    by_dict, by_frame = (fitted.decide(Z, known=told)[here.order] for told in (known, frame))
    np.testing.assert_array_equal(by_dict, by_frame)
    by_parameter = fitted.decide(Z, known={here.stock: known["stock"], here.price: known["price"]})[here.order]
    np.testing.assert_array_equal(by_dict, by_parameter)
    with pytest.raises(dro.ShapeError, match=r"lacks the columns \['stock_1'\]"):
        fitted.decide(Z, known=frame.drop(columns="stock_1"))
    # What was saved knows what it needs.
    fitted.save(tmp_path / "shelf.safetensors")
    again = dro.DecisionFocusedLearner.load(tmp_path / "shelf.safetensors", here.problem)
    np.testing.assert_array_equal(again.decide(Z, known=known)[here.order], by_dict)
    plain = dro.DecisionProblem(
        cp.sum(cp.abs(here.y - here.order)), [], dro.MomentSet(here.y, [dro.moments.SquaredNorm()])
    )
    with pytest.raises(dro.ModelError, match="was saved for a problem with known data"):
        dro.DecisionFocusedLearner.load(tmp_path / "shelf.safetensors", plain)


def test_validation_data_have_known_data_too() -> None:
    here, (Z, Y, known) = Shelf(), data()
    held = {name: value[:8] for name, value in known.items()}
    fitted = learner(here.problem).fit(Z, Y, (Z[:8], Y[:8], held), known)
    assert fitted.history_["decision"]
    with pytest.raises(dro.ShapeError, match="needs known data for"):
        learner(here.problem).fit(Z, Y, (Z[:8], Y[:8]), known)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"stock": "many"}, "holds text"),
        ({"stock": np.zeros((24, 3))}, "must have shape"),
        ({"stock": np.zeros((23, 2))}, "items where there are 24"),
        ({"price": -np.ones(24)}, r"price is -1, against its declaration, in items"),
        ({"price": np.full(24, np.nan)}, "price is NaN or infinite in items"),
        ({"charge": np.ones(24)}, "'charge', which the problem does not use"),
    ],
)
def test_bad_known_data_is_one_sentence(change: dict[str, Any], says: str) -> None:
    here, (Z, Y, known) = Shelf(), data()
    with pytest.raises(dro.ShapeError, match=says):
        learner(here.problem).fit(Z, Y, known={**known, **change})


def test_one_bad_item_is_masked_where_one_decides_and_refused_where_one_learns() -> None:
    here, (Z, Y, known) = Shelf(), data()
    fitted = learner(here.problem).fit(Z, Y, known=known)
    wrong = {**known, "price": np.where(np.arange(24) == 3, np.nan, known["price"])}
    with pytest.warns(dro.MaskedDataWarning, match=r"price is NaN or infinite in items \[3\]"):
        decision = fitted.decision(Z, wrong)
    assert decision.ok.tolist() == [k != 3 for k in range(24)]
    np.testing.assert_array_equal(
        decision.best[here.order][decision.ok], fitted.decide(Z, known=known)[here.order][decision.ok.numpy()]
    )
    with pytest.raises(dro.ShapeError, match=r"price is NaN or infinite in items \[3\]: drop or correct"):
        fitted.fit(Z, Y, known=wrong)


@pytest.mark.parametrize("kind", ["SampleAverage", "WeightedSampleAverage", "MeanPrediction", "NoSet"])
def test_baselines_know_what_is_known(kind: str) -> None:
    """All of them order up to a level that does not depend on the stock."""
    here, (Z, Y, known) = Shelf(), data()
    short: dict[str, Any] = {
        "MeanPrediction": {"epochs": 2},
        "NoSet": {"pretraining": dro.Stage(epochs=2), "training": dro.Stage(epochs=1)},
    }
    policy = getattr(baselines, kind)(here.problem, **short.get(kind, {})).fit(Z, Y, known=known)
    more = {**known, "stock": known["stock"] + 1.0}
    one, other = (policy.decide(Z, told)[here.order] for told in (known, more))
    np.testing.assert_allclose(one, other + 1.0, atol=1e-5)


def test_pictures_take_known_data() -> None:
    here, (_, _, known) = Shelf(), data(2)
    theta = torch.tensor([[2.5, 2.5, 1.0], [3.0, 2.0, 1.0]]).double()
    decision = dro.DROLayer(here.problem).eval()(theta, known=known)
    assert plot.worst_case(here.problem, decision, theta, known=known, item=1)
    axes = plot.price_of_robustness(here.problem, theta, "0.sigma", [0.5, 1.0, 2.0], known=known, item=1)
    costs = axes.lines[0].get_ydata()
    assert costs[1] == pytest.approx(float(decision.value[1]), rel=1e-6)


SHELF = """
import cvxpy as cp
import drolayers as dro

stock, price = cp.Parameter(2, nonneg=True, name="stock"), cp.Parameter(nonneg=True, name="price")
y, order = dro.Uncertain(2), cp.Variable(2, nonneg=True, name="order")
shelf = order + stock
cost = price * cp.sum(order) + cp.sum(cp.maximum(4.0 * (y - shelf), shelf - y))
problem = dro.DecisionProblem(cost, [], dro.MomentSet(y, [dro.moments.SquaredNorm()]))
short = dro.Stage(epochs=1, batch_size=15)
learner = dro.DecisionFocusedLearner(problem, pretraining=short, training=short)
"""


def test_the_command_line_finds_columns_of_known_data(tmp_path: Path) -> None:
    Z, Y, known = data(40)
    (tmp_path / "shelf.py").write_text(SHELF)
    names = "price,z1,z2,stock_2,stock_1,y1,y2"
    table = np.column_stack([known["price"], Z, known["stock"][:, ::-1], Y])
    np.savetxt(tmp_path / "data.csv", table, delimiter=",", header=names, comments="")
    said = CliRunner().invoke(
        app, ["run", str(tmp_path / "shelf.py"), str(tmp_path / "data.csv"), "--out", str(tmp_path / "out"), "-q"]
    )
    assert said.exit_code == 0, said.output
    np.savetxt(tmp_path / "few.csv", table[:3, :5], delimiter=",", header=names[: -len(",y1,y2")], comments="")
    said = CliRunner().invoke(app, ["decide", str(tmp_path / "out"), str(tmp_path / "few.csv")])
    found = np.array([[float(r["order_1"]), float(r["order_2"])] for r in csv.DictReader(StringIO(said.stdout))])
    space: dict[str, Any] = {}
    exec(SHELF, space)
    fitted = dro.DecisionFocusedLearner.load(tmp_path / "out" / "model.safetensors", space["problem"])
    told = {name: value[:3] for name, value in known.items()}
    np.testing.assert_allclose(found, fitted.decide(Z[:3], told)[space["order"]], atol=1e-9)
    np.savetxt(tmp_path / "few.csv", table[:3, :4], delimiter=",", header="price,z1,z2,stock_2", comments="")
    said = CliRunner().invoke(app, ["decide", str(tmp_path / "out"), str(tmp_path / "few.csv")])
    assert "lacks the columns ['stock_1']" in said.stderr
