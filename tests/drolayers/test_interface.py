"""Names, representations and inputs that a user meets on the first day."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch

import drolayers as dro

THETA = [[1.0, 1.0, 0.3]]
REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


class Setting:
    """A newsvendor with named and unnamed constraints, and two variables of one name."""

    def __init__(self) -> None:
        y = dro.Uncertain(2, support=dro.support.Box(0, 3), name="demand")
        self.order, self.first, self.second = cp.Variable(2, name="order"), cp.Variable(name="z"), cp.Variable(name="z")
        self.service = dro.chance(y <= self.order + 0.5, 0.8, name="service")
        self.room = dro.always(y <= self.order + 3.0)
        self.short = dro.expected(cp.sum(cp.pos(y - self.order)), name="short") <= 2.0
        self.tail = dro.cvar(cp.sum(y - self.order), 0.5, name="tail") <= 9.0
        constraints = [self.service, self.room, self.short, self.tail, self.first >= 0, self.second >= 0]
        cost = cp.sum(self.order) + self.first + self.second
        self.problem = dro.DecisionProblem(cost, constraints, dro.MomentSet(y, [dro.moments.SquaredNorm()]))
        self.layer = dro.DROLayer(self.problem)
        self.decision = self.layer(torch.tensor(THETA))


@pytest.fixture(scope="module")
def setting() -> Setting:
    return Setting()


def test_results_are_looked_up_by_name(setting: Setting) -> None:
    problem, best = setting.problem, setting.decision.best
    assert best["order"] is best[setting.order]
    outcomes = torch.ones(1, 2)
    values = problem.violations(best, outcomes)
    for name, constraint in (("service", setting.service), ("short", setting.short), ("tail", setting.tail)):
        assert values[name] is values[constraint]
        assert name in values
        assert values.get(name) is values[constraint]
        torch.testing.assert_close(
            problem.worst_case(best, torch.tensor(THETA), of=name),
            problem.worst_case(best, torch.tensor(THETA), of=constraint),
        )
    assert problem.shortfalls(torch.tensor(THETA))["short"].shape == (1, 1)
    assert problem.exact["tail"]
    assert problem.worst_case_distribution(best, torch.tensor(THETA), of="short").probabilities.sum() == pytest.approx(
        1
    )


def test_a_name_that_is_ambiguous_or_unknown_is_said(setting: Setting) -> None:
    best = setting.decision.best
    with pytest.raises(dro.ModelError, match=r"2 of problem.variables are called 'z': use the object"):
        best["z"]
    with pytest.raises(KeyError, match=r"stock is none of problem.variables: here are \['order', 'z', 'z'\]"):
        best["stock"]
    with pytest.raises(dro.ModelError, match=r"budget is none of .*: here are .*'service'"):
        setting.problem.worst_case(best, torch.tensor(THETA), of="budget")


def test_two_constraints_have_two_names() -> None:
    y, x = dro.Uncertain(2), cp.Variable(2)
    rules = [dro.expected(cp.sum(cp.pos(y - x)), name="short") <= bound for bound in (1.0, 2.0)]
    with pytest.raises(dro.ModelError, match="Two constraints are named 'short'"):
        dro.DecisionProblem(cp.sum(x), rules, dro.MomentSet(y, [dro.moments.SquaredNorm()]))
    with pytest.raises(dro.ModelError, match=r"chance\(name=''\) needs a non-empty text"):
        dro.chance(y <= x, 0.9, name="")


def test_keys_print_as_they_were_written(setting: Setting) -> None:
    text = repr(setting.problem.exact)
    assert text == "{cost: True, service: False, always(demand <= order + 3.0): True, short: True, tail: True}"
    assert repr(setting.decision.best).startswith("{order: tensor(")


def test_representations(setting: Setting) -> None:
    problem, layer, decision = setting.problem, setting.layer, setting.decision
    assert repr(problem.ambiguity.y) == "Uncertain(2, support=Box(0, 3), name='demand')"
    assert repr(layer).startswith("DROLayer(DecisionProblem(3 variables, MomentSet(")
    assert "gradient=Exact" in repr(layer)
    assert len(repr(layer)) < 400
    for shown in (problem, layer, decision):
        html = shown._repr_html_()
        assert html.startswith("<pre>")
        assert type(shown).__name__ in html
    assert "<td>service</td><td>chance</td>" in problem._repr_html_()
    assert "<td>order</td><td>(1, 2)</td>" in decision._repr_html_()


def test_theta_may_be_an_array(setting: Setting) -> None:
    problem, layer = setting.problem, setting.layer
    expected = layer(torch.tensor(THETA, dtype=torch.float64)).value
    by_name = {name: value.numpy() for name, value in problem.unpack(torch.tensor(THETA).double()).items()}
    for theta in (np.array(THETA), by_name):
        torch.testing.assert_close(layer(theta).value, expected)
        assert problem.shortfalls(theta)["short"].shape == (1, 1)
    with pytest.raises(dro.ShapeError, match=r"not torch.int64: use theta.float\(\)"):
        layer(torch.ones(1, 3, dtype=torch.int64))


def test_a_nominal_distribution_may_be_arrays() -> None:
    y, x = dro.Uncertain(2), cp.Variable(2)
    problem = dro.DecisionProblem(cp.sum(cp.abs(y - x)), [], dro.Wasserstein(y, 3))
    atoms, weights = np.arange(6.0).reshape(1, 3, 2), np.full((1, 3), 1 / 3)
    arrays = problem.solve(np.array([[0.1]]), (atoms, weights)).objective
    torch.testing.assert_close(
        arrays, problem.solve(torch.tensor([[0.1]]).double(), tuple(map(torch.as_tensor, (atoms, weights)))).objective
    )


def test_predicted_sets_and_decisions_of_arrays_go_where_tensors_go() -> None:
    pytest.importorskip("lightning")
    plt = pytest.importorskip("matplotlib.pyplot")
    y, x = dro.Uncertain(2, support=dro.support.Nonnegative()), cp.Variable(2, nonneg=True, name="order")
    short = dro.expected(cp.sum(cp.pos(y - x)), name="short") <= 9.0
    cost = cp.sum(cp.maximum(2 * (y - x), x - y))
    problem = dro.DecisionProblem(cost, [short], dro.MomentSet(y, [dro.moments.SquaredNorm()]))
    rng = np.random.default_rng(0)
    covariates, outcomes = rng.random((40, 2)), 1 + rng.random((40, 2))
    stage = dro.Stage(epochs=1, rate=1e-2)
    learner = dro.DecisionFocusedLearner(problem, pretraining=stage, training=stage).fit(covariates, outcomes)
    sets, decision = learner.predict_set(covariates), learner.decide(covariates)
    assert decision["order"] is decision[x]
    assert problem.shortfalls(sets)["short"].shape == (40, 1)
    dro.plot.worst_case(problem, decision, sets, item=3)
    plt.close("all")
    for policy in (learner, dro.baselines.MeanPrediction(dro.DecisionProblem(cost, [], problem.ambiguity))):
        if policy is not learner:
            policy.fit(covariates, outcomes)
        with pytest.raises(dro.ShapeError, match=r"Z is one row of 2 numbers, not a table: pass Z\[:1\]"):
            policy.decide(covariates[0])


def test_the_command_line_prints_its_version() -> None:
    testing = pytest.importorskip("typer.testing")
    from drolayers.cli import app

    result = testing.CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.output.strip() == f"drolayers {dro.__version__}"


MODULES = ["baselines", "metrics", "moments", "nominal", "objectives", "plot", "proposals", "support"]


@pytest.mark.parametrize("name", MODULES)
def test_public_modules_list_what_is_documented(name: str) -> None:
    if name in ("baselines", "metrics", "objectives"):
        pytest.importorskip("lightning")
    module: Any = getattr(dro, name)
    assert dir(module) == sorted(module.__all__)
    text = "\n".join(page.read_text(encoding="utf-8") for page in REFERENCE.glob("*.md"))
    undocumented = [public for public in module.__all__ if public not in text]
    assert not undocumented
    for public in module.__all__:
        assert getattr(module, public) is not None
