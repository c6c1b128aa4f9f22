"""The T best integer decisions of a whole batch."""

from drolayers.integer.branch_and_bound import BranchAndBound
from drolayers.integer.enumeration import Enumeration
from drolayers.integer.external import External
from drolayers.integer.feasibility import feasible_points
from drolayers.integer.gurobi import Gurobi
from drolayers.integer.highs import HiGHS
from drolayers.integer.linear import Simplex
from drolayers.integer.oracle import Candidates, Oracle
from drolayers.integer.registry import Auto, make_oracle
from drolayers.integer.scip import SCIP

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
    "feasible_points",
    "make_oracle",
]
