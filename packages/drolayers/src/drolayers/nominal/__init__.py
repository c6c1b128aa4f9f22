"""Estimates of the distribution of ``y`` given ``z``: weighted training outcomes."""

from drolayers.nominal.base import KNN, Kernel, NominalDistribution, TiedAtomsWarning
from drolayers.nominal.forest import Forest

__all__ = ["KNN", "Forest", "Kernel", "NominalDistribution", "TiedAtomsWarning"]


def __dir__() -> list[str]:
    return sorted(__all__)
