"""Cone programs compiled once, solved in batches, differentiated."""

from drolayers.conic.adjoints.rules import Exact, Smoothed
from drolayers.conic.engine import Engine, FlatGradientWarning, MaskedGradientWarning, ValueKinkWarning
from drolayers.conic.program import ConeProgram, Cones, Values
from drolayers.conic.registry import default_engine, make_engine
from drolayers.conic.solution import Solution, WarmStart

__all__ = [
    "ConeProgram",
    "Cones",
    "Engine",
    "Exact",
    "FlatGradientWarning",
    "MaskedGradientWarning",
    "Smoothed",
    "Solution",
    "ValueKinkWarning",
    "Values",
    "WarmStart",
    "default_engine",
    "make_engine",
]
