"""Differentiable distributionally robust optimization layers for PyTorch.

Names are loaded on first use, so that a compiled cone program runs where CVXPY is not installed.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conelayers import Derivative, Exact, RelativeTemperature, Smoothed
    from drolayers.ambiguity.mean_covariance import MeanCovariance
    from drolayers.ambiguity.mixture import Mixture
    from drolayers.ambiguity.moment_set import MomentSet
    from drolayers.ambiguity.moments import Learn
    from drolayers.ambiguity.nominal import Nominal
    from drolayers.ambiguity.outcomes import Outcomes
    from drolayers.ambiguity.reweighted import Divergence, Empirical
    from drolayers.ambiguity.wasserstein import Wasserstein
    from drolayers.cost.adaptive import Adaptive
    from drolayers.cost.recourse import recourse
    from drolayers.cost.risk import always, chance, cvar, expected, fragility
    from drolayers.errors import (
        DifferentiationError,
        LayerError,
        MaskedDataWarning,
        MissingExtraError,
        ModelError,
        ShapeError,
        SolveError,
        UnsolvedItemsWarning,
    )
    from drolayers.layer import Decision, DROLayer
    from drolayers.learning import (
        Annealed,
        ClippedInputsWarning,
        DecisionFocusedLearner,
        Network,
        Stage,
        Trainer,
        choose,
    )
    from drolayers.problem import DecisionProblem
    from drolayers.projection import Projection
    from drolayers.status import Status
    from drolayers.uncertainty import Uncertain

__version__ = "0.2.0"

_HOME = {
    "LayerError": "errors",
    "DROLayer": "layer",
    "Decision": "layer",
    "DecisionFocusedLearner": "learning",
    "DecisionProblem": "problem",
    "DifferentiationError": "errors",
    "Divergence": "ambiguity.reweighted",
    "Empirical": "ambiguity.reweighted",
    "Learn": "ambiguity.moments",
    "MaskedDataWarning": "errors",
    "MeanCovariance": "ambiguity.mean_covariance",
    "MissingExtraError": "errors",
    "ModelError": "errors",
    "Mixture": "ambiguity.mixture",
    "MomentSet": "ambiguity.moment_set",
    "Nominal": "ambiguity.nominal",
    "Outcomes": "ambiguity.outcomes",
    "Projection": "projection",
    "Annealed": "learning",
    "ClippedInputsWarning": "learning",
    "Network": "learning",
    "Stage": "learning",
    "Trainer": "learning",
    "ShapeError": "errors",
    "SolveError": "errors",
    "Status": "status",
    "Uncertain": "uncertainty",
    "UnsolvedItemsWarning": "errors",
    "Wasserstein": "ambiguity.wasserstein",
    "Adaptive": "cost.adaptive",
    "always": "cost.risk",
    "chance": "cost.risk",
    "choose": "learning",
    "cvar": "cost.risk",
    "expected": "cost.risk",
    "fragility": "cost.risk",
    "recourse": "cost.recourse",
}
_LEARNING = ("learning", "learning.objectives", "baselines", "metrics")
"""Homes that need the extra ``learning``."""
_ENGINE = ("Derivative", "Exact", "RelativeTemperature", "Smoothed")
"""Names of the engine that belong to this interface, too."""
_MODULES = {
    "baselines": "baselines",
    "metrics": "metrics",
    "moments": "ambiguity.moments",
    "nominal": "nominal",
    "objectives": "learning.objectives",
    "plot": "plot",
    "proposals": "proposals",
    "support": "support",
}

__all__ = [
    "Adaptive",
    "Annealed",
    "ClippedInputsWarning",
    "DROLayer",
    "Decision",
    "DecisionFocusedLearner",
    "DecisionProblem",
    "Derivative",
    "DifferentiationError",
    "Divergence",
    "Empirical",
    "Exact",
    "LayerError",
    "Learn",
    "MaskedDataWarning",
    "MeanCovariance",
    "MissingExtraError",
    "Mixture",
    "ModelError",
    "MomentSet",
    "Network",
    "Nominal",
    "Outcomes",
    "Projection",
    "RelativeTemperature",
    "ShapeError",
    "Smoothed",
    "SolveError",
    "Stage",
    "Status",
    "Trainer",
    "Uncertain",
    "UnsolvedItemsWarning",
    "Wasserstein",
    "always",
    "chance",
    "choose",
    "cvar",
    "expected",
    "fragility",
    "recourse",
]


def __getattr__(name: str) -> Any:
    if name in ("Energy", "Stratified"):
        warnings.warn(f"dro.{name} is dro.proposals.{name} now.", FutureWarning, stacklevel=2)
        return getattr(import_module("conelayers.internals"), name)
    if name in _ENGINE:
        return getattr(import_module("conelayers"), name)
    if name in _HOME:
        return getattr(import_module(f"drolayers.{_HOME[name]}"), name)
    if name in _MODULES:
        return import_module(f"drolayers.{_MODULES[name]}")
    raise AttributeError(f"module 'drolayers' has no attribute {name!r}")


def __dir__() -> list[str]:
    """What is installed; a name that is not says which extra to install."""
    from drolayers.extras import LEARNING, absent

    homes = {**_HOME, **_MODULES}
    if absent(*LEARNING):
        homes = {name: home for name, home in homes.items() if home not in _LEARNING}
    return sorted({*homes, *_ENGINE, "__version__"})


if not TYPE_CHECKING:
    # ``from drolayers import *`` takes what is there.
    _there = set(__dir__())
    __all__ = [name for name in __all__ if name in _there]
