"""Sets of events are fitted to what each event allows of the data."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import torch

import drolayers as dro
from drolayers import moments
from drolayers.learning.pretraining import MixtureLoss, PredictionLoss
from tests.drolayers.learning.small import learner


def weather() -> tuple[dro.DecisionProblem, dro.Mixture]:
    """Wet days have a demand below 4, dry ones above."""
    y, x = dro.Uncertain(1, support=dro.support.Box(0.0, 10.0)), cp.Variable(nonneg=True)
    below, above = y.within(dro.support.Box(hi=4.0)), y.within(dro.support.Box(lo=4.0))
    mixture = dro.Mixture({"wet": dro.MomentSet(below, [moments.SquaredNorm()]), "dry": dro.Outcomes(above, "box")})
    return dro.DecisionProblem(x + 4 * cp.pos(y[0] - x), [], mixture), mixture


def days(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Three of four days are dry."""
    rng = np.random.default_rng(0)
    dry = rng.uniform(size=count) < 0.75
    return rng.uniform(size=(count, 1)), np.where(dry, rng.normal(7, 0.5, count), rng.normal(2, 0.3, count))[:, None]


def test_the_loss_is_the_sum_of_those_of_the_events() -> None:
    _, mixture = weather()
    Y = torch.as_tensor(days(40)[1])
    loss = MixtureLoss(mixture, Y)
    assert loss.fits
    theta = mixture.pack({n: v.centre[None].double() for n, v in mixture.typical(Y).items()}).repeat(2, 1)
    atoms = torch.tensor([[[1.0], [3.0], [6.0], [8.0]], [[5.0], [6.0], [7.0], [8.0]]]).double()
    nominal = dro.Nominal(atoms, torch.full((2, 4), 0.25).double())
    wet = PredictionLoss(mixture.sets[0], Y[Y[:, 0] < 4.0])
    # The second item has no wet day: only the first says something of them.
    own = wet(mixture.theta_of(theta, 0)[:1], (atoms[:1, :2], torch.full((1, 2), 0.5).double()), "both") / 2
    inner = loss._losses[1]
    dry = [
        inner(mixture.theta_of(theta, 1)[i : i + 1], (part[None], torch.full((1, len(part)), 1.0 / len(part))), "both")
        for i, part in enumerate((atoms[0, 2:], atoms[1]))
    ]
    share = torch.tensor([[0.5, 0.5], [0.0, 1.0]]).double()
    often = (mixture.probabilities(theta) - share).square().sum(1).mean()
    torch.testing.assert_close(loss(theta, nominal, "both"), often + own + sum(dry) / 2)
    # Locations that are fitted to outcomes do not see the neighbours.
    theta.requires_grad_()
    outcomes = torch.tensor([[2.5], [6.5]]).double()
    values = loss(theta, nominal, "both", outcomes), loss.at_outcomes(theta, outcomes)
    whole, first = (mixture.unpack(torch.autograd.grad(value, theta)[0]) for value in values)
    for name in ("weights", "wet.0.mu", "dry.centre"):
        torch.testing.assert_close(whole[name], first[name])


def test_a_learner_finds_how_often_events_come_and_where() -> None:
    problem, mixture = weather()
    Z, Y = days(120)
    settings = {"pretraining": dro.Stage(epochs=60, rate=3e-2), "nominal": dro.nominal.KNN(k=60), "training": None}
    model = learner(problem, model=dro.Network(hidden=()), projection=None, **settings).fit(Z, Y)
    found = model.predict_set(Z)
    dry = Y[:, 0] > 4.0
    p = mixture.probabilities(mixture.pack({n: torch.as_tensor(v) for n, v in found.items()})).mean(0)
    np.testing.assert_allclose(p, [1 - dry.mean(), dry.mean()], atol=0.1)
    assert abs(found["wet.0.mu"].mean() - Y[~dry].mean()) < 0.3
    assert abs(found["dry.centre"].mean() - Y[dry].mean()) < 0.3
