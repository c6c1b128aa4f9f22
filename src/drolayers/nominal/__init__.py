"""Estimates of the distribution of ``y`` given ``z``: weighted training outcomes."""

from drolayers.nominal.base import NominalDistribution
from drolayers.nominal.forest import Forest
from drolayers.nominal.kernel import Kernel
from drolayers.nominal.knn import KNN

__all__ = ["KNN", "Forest", "Kernel", "NominalDistribution"]
