"""The T best integer decisions of a whole batch."""

from drolayers.integer.enumeration import Enumeration
from drolayers.integer.oracle import Candidates, Oracle
from drolayers.integer.registry import Auto, make_oracle

__all__ = ["Auto", "Candidates", "Enumeration", "Oracle", "make_oracle"]
