"""The T best integer decisions of a whole batch."""

from drolayers.integer.branch_and_bound import BranchAndBound
from drolayers.integer.enumeration import Enumeration
from drolayers.integer.feasibility import feasible_points
from drolayers.integer.oracle import Candidates, Oracle
from drolayers.integer.registry import Auto, make_oracle

__all__ = ["Auto", "BranchAndBound", "Candidates", "Enumeration", "Oracle", "feasible_points", "make_oracle"]
