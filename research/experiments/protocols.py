"""How things are trained: settings as plain data, by experiment and protocol.

``paper``: the networks, epochs, rates, T, S, K, proposal and projection of the paper and its published scripts, and
never enumeration. ``paper-published-weights``: the same with the published weights of the draws (in the mixed-integer
portfolio only: the other scripts have no such slip). ``strong``: ours, chosen on validation data, the same for
prediction- and decision-focused learning. ``quick``: to see that everything runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from conelayers.surrogate.proposal import Energy
from drolayers.learning import Annealed, Network, Stage
from research.experiments.published import Pretraining, PublishedEnergy


@dataclass(frozen=True)
class Settings:
    """What a protocol fixes for one experiment.

    Args:
        learner: settings of ``DecisionFocusedLearner``.
        layer: settings of the ``DROLayer``; the learner's own layer where empty.
        leave_one_out: whether training points are kept out of their own neighbours.
        neighbours: K of the nominal distribution; a share of the training points where below one.
        published: networks and pre-training of a published script; None for the learner's own.
        baselines: settings of the baselines, by name.
    """

    learner: Mapping[str, Any]
    layer: Mapping[str, Any] = field(default_factory=dict)
    leave_one_out: bool = True
    neighbours: float = 20
    published: Pretraining | None = None
    baselines: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def k(self, points: int) -> int:
        """The number of neighbours."""
        return max(1, int(self.neighbours * points if self.neighbours < 1 else self.neighbours))


# Pre-training and projection are the published model's.
_PUBLISHED_LEARNER: dict[str, Any] = {"pretraining": None, "projection": None}

_NEWSVENDOR_PAPER = Settings(
    learner={
        **_PUBLISHED_LEARNER,
        "training": Stage(
            epochs=60,
            rate=Annealed(1e-4, divisor=5.0, every=20),
            batch_size=50,
            clip=None,
            temperature=Annealed(3.0, divisor=3.0, every=20),
            gradient="exact",
        ),
    },
    layer={"candidates": 4, "samples": 7, "proposal": Energy(ratio=0.5, cap=0.4), "enumerate_up_to": 0},
    leave_one_out=False,
    neighbours=0.05,
    published=Pretraining(
        hidden=(60, 60),
        epochs=40,
        every=20,
        batch_size=50,
        fresh=200,
        projection="auto",
        weights={"0.mu": 5.0, "1.mu": 5.0},
    ),
)
# On four draws of data beside those reported, 100 points, SOC-II, gap on 500 held-out contexts (prediction / decision):
# batches of 50, 30 epochs at 1e-3 are sixty steps, too few (2.6 / 1.6 on two draws); batches of 25, 60 epochs at 3e-3
# 2.2 / 0.63 with 20 neighbours and 1.5 / 0.74 with 10. Ten serve both; wider or longer made no difference.
_NEWSVENDOR_LEARNER: dict[str, Any] = {
    "pretraining": Stage(epochs=40, rate=1e-2, batch_size=25),
    "training": Stage(epochs=60, rate=3e-3, batch_size=25),
}
_NEWSVENDOR_STRONG = Settings(learner=_NEWSVENDOR_LEARNER, neighbours=10)

_PORTFOLIO_PAPER = Settings(
    learner={
        **_PUBLISHED_LEARNER,
        "training": Stage(
            epochs=60,
            rate=Annealed(5e-5, divisor=5.0, every=20),
            batch_size=100,
            clip=None,
            gradient="smoothed",
        ),
    },
    leave_one_out=False,
    published=Pretraining(hidden=(22, 27)),
    baselines={"costa-iyengar": {"epochs": 60, "lr": 0.0125}},
)
_PORTFOLIO_LEARNER: dict[str, Any] = {
    # On the validation data of 40 assets: networks of 64 x 64 units 0.786 (prediction) and 0.838, linear in monomials
    # of degree two 0.881 and 0.888, and without the projection, whose neighbours' variances are noisy, 0.913.
    "model": Network(hidden=(), degree=2),
    "projection": None,
    "pretraining": Stage(epochs=30, rate=1e-2, batch_size=100, locations="outcomes"),
    # By cross-validation (the 3,000 points that are not for testing in six parts: four to train, one to choose the
    # epoch, one to score), mean prediction 0.924 with the same monomials, and 0.900 with lots:
    #   level 0.03, 12 epochs at 3e-2: 0.911; at 1e-2: 0.913, with lots 0.892; levels 0.01, 0.003, 0.001: 0.90 to 0.89
    #   level 0.1, 24 epochs at 1e-2: 0.917, with lots 0.898; 36 epochs 0.918
    #   rates that fall along a half cosine, 24 epochs: level 0.1 0.918, 0.3 0.917; from 3e-2 0.916
    # Little smoothing follows the noise of single outcomes; bounds that do not depend on the context are worse (0.906).
    # Solutions of groups are vertices, too (validation 0.773 exact, 0.881 smoothed). An anchor of 75 in typical units
    # is one of 3 beside returns as they are, whose typical unit is 0.04.
    "training": Stage(epochs=24, rate=1e-2, batch_size=100, anchor=75.0, gradient="smoothed", smoothing=0.1),
}
# Baselines see what our model sees: on the validation data mean prediction goes from 0.906 with a network of 64 x 64
# units to 0.923, SPO+ from 0.901 to 0.919, Costa-Iyengar from 0.882 to 0.889; perturbed optimisers were not looked at.
_MONOMIALS: dict[str, Any] = {"degree": 2, "hidden": ()}
_PORTFOLIO_STRONG = Settings(
    learner=_PORTFOLIO_LEARNER,
    baselines={
        "costa-iyengar": {**_MONOMIALS, "pretrain_epochs": 50, "epochs": 60, "lr": 3e-3},
        "mean": _MONOMIALS,
        "mean-network": {"hidden": (64, 64)},
        "spo+": {**_MONOMIALS, "epochs": 30},
        "perturbed": {**_MONOMIALS, "epochs": 30},
    },
)

_MIXED_PAPER = Settings(
    learner={
        **_PUBLISHED_LEARNER,
        "training": Stage(
            epochs=30,
            rate=Annealed(5e-5, divisor=5.0, every=20),
            batch_size=100,
            clip=None,
            temperature=Annealed(10.0, divisor=3.0, every=30),
            gradient="smoothed",
        ),
    },
    layer={"candidates": 3, "samples": 4, "proposal": Energy(ratio=0.5, cap=0.2), "enumerate_up_to": 0},
    leave_one_out=False,
    published=Pretraining(hidden=(10,)),
)
_MIXED_STRONG = Settings(
    learner=_PORTFOLIO_LEARNER,
    baselines={"mean": _MONOMIALS, "mean-network": {"hidden": (64, 64)}},
)

# With few points in all, of which learners hold a fifth out. On two draws beside those reported, 100 points of the
# portfolio, score on 2,000 held-out points (prediction / decision / without a set): networks 0.33 / 0.47 / 0.49, linear
# 0.12 / 0.34 / 0.29, linear in monomials of degree two 0.62 / 0.68 / 0.67.
_NEWSVENDOR_FEW = Settings(
    learner=_NEWSVENDOR_LEARNER,
    neighbours=10,
    baselines={
        "no-set": {
            "pretraining": Stage(epochs=100, rate=3e-3, batch_size=25),
            "training": _NEWSVENDOR_LEARNER["training"],
        }
    },
)
_PORTFOLIO_FEW = Settings(
    learner={
        "model": Network(hidden=(), degree=2),
        "projection": None,
        "pretraining": _NEWSVENDOR_LEARNER["pretraining"].but(locations="outcomes"),
        "training": _NEWSVENDOR_LEARNER["training"].but(anchor=75.0),
    },
    neighbours=10,
    baselines={"no-set": {**_NEWSVENDOR_FEW.baselines["no-set"], "model": Network(hidden=(), degree=2)}},
)


def _quick(strong: Settings) -> Settings:
    """The same with a few epochs of everything."""

    def short(given: Mapping[str, Any], epochs: int) -> dict[str, Any]:
        stages = {name: stage.but(epochs=epochs) for name, stage in given.items() if isinstance(stage, Stage)}
        return {**given, **(stages or {"epochs": epochs})}

    few = {name: short(given, 20 if name.startswith("mean") else 2) for name, given in strong.baselines.items()}
    if "costa-iyengar" in few:
        # Its cone program grows with the scenarios.
        few["costa-iyengar"] |= {"scenarios": 20}
    stages = {
        "pretraining": strong.learner["pretraining"].but(epochs=8),
        "training": strong.learner["training"].but(epochs=3),
    }
    return replace(strong, learner={**strong.learner, **stages}, baselines=few)


PROTOCOLS: dict[str, dict[str, Settings]] = {
    "newsvendor": {
        "paper": _NEWSVENDOR_PAPER,
        "strong": _NEWSVENDOR_STRONG,
        "quick": _quick(_NEWSVENDOR_STRONG),
    },
    "portfolio": {
        "paper": _PORTFOLIO_PAPER,
        "strong": _PORTFOLIO_STRONG,
        "quick": _quick(_PORTFOLIO_STRONG),
    },
    "mixed": {
        "paper": _MIXED_PAPER,
        "paper-published-weights": replace(
            _MIXED_PAPER, layer={**_MIXED_PAPER.layer, "proposal": PublishedEnergy(Energy(ratio=0.5, cap=0.2))}
        ),
        "strong": _MIXED_STRONG,
        "quick": _quick(_MIXED_STRONG),
    },
    "robustness-newsvendor": {"strong": _NEWSVENDOR_FEW, "quick": _quick(_NEWSVENDOR_FEW)},
    "robustness-portfolio": {"strong": _PORTFOLIO_FEW, "quick": _quick(_PORTFOLIO_FEW)},
    "time": {"paper": Settings(learner={"training": Stage(batch_size=100)}, layer={"candidates": 1, "samples": 1})},
}
"""Settings by experiment (and problem, where it has several) and protocol; a protocol that is not there is skipped."""

NAMES = ("paper", "paper-published-weights", "strong")
"""What ``reproduce`` runs unless told otherwise."""
