"""Oracles: they find the best integer points of a batch of programs, and can be named or handed to a layer."""

from conelayers.integer.enumeration import Enumeration
from conelayers.integer.external.external import External
from conelayers.integer.external.gurobi import Gurobi
from conelayers.integer.external.highs import HiGHS
from conelayers.integer.external.scip import SCIP
from conelayers.integer.oracle import Candidates, Oracle
from conelayers.integer.registry import Auto, make_oracle
from conelayers.integer.simplex.linear import Simplex
from conelayers.integer.tree.branch_and_bound import BranchAndBound

__all__ = [
    "SCIP",
    "Auto",
    "BranchAndBound",
    "Candidates",
    "Enumeration",
    "External",
    "Gurobi",
    "HiGHS",
    "Oracle",
    "Simplex",
    "make_oracle",
]
