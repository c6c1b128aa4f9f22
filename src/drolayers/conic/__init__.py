"""Cone programs compiled once, solved in batches, differentiated."""

from drolayers.conic.engine import Engine, FlatGradientWarning
from drolayers.conic.program import ConeProgram, Cones, Values
from drolayers.conic.registry import make_engine
from drolayers.conic.solution import Solution, WarmStart
from drolayers.conic.solvers.contract import Exact, Smoothed

__all__ = [
    "ConeProgram",
    "Cones",
    "Engine",
    "Exact",
    "FlatGradientWarning",
    "Smoothed",
    "Solution",
    "Values",
    "WarmStart",
    "make_engine",
]
