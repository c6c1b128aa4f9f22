"""Names that packages of the same version use beyond the public ones.

They may change in any release. Names are loaded on first use:
a program that was compiled and saved is solved where CVXPY is not installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conelayers import files
    from conelayers.checks import check_same_index, directory, finite, number, numbers, real, whole
    from conelayers.engine.elastic import endless
    from conelayers.engine.engine import ValueKinkWarning
    from conelayers.engine.registry import default_engine
    from conelayers.engine.solvers.contract import Solver
    from conelayers.extras import absent, needs, require
    from conelayers.files import is_count, is_number, misfits, must
    from conelayers.integer.enumeration import all_points, box_size
    from conelayers.integer.feasibility import feasible_points
    from conelayers.integer.oracle import check_box
    from conelayers.numbering import Keyed, Numbered, key_text, keyed_as
    from conelayers.program.compile import check_leaves
    from conelayers.program.program import AffineMap, Values
    from conelayers.status import (
        OnFailure,
        Statuses,
        check_on_failure,
        describe_unsolved,
        no_unsolved_warnings,
        solve_error,
        usable,
        warns_unsolved,
    )
    from conelayers.surrogate.energy import (
        Temperature,
        check_temperature,
        compute_temperature,
        effective_sample_size,
        energy_probabilities,
    )
    from conelayers.surrogate.proposal import Draws, Energy, Proposal, ProposalInput, Stratified
    from conelayers.surrogate.solved_candidates import SolvedCandidates
    from conelayers.tensors import row_weights, tensor, weighted_mean
    from conelayers.transforms import refuse_transforms, refuse_vmap, untraced, unwrapped
    from conelayers.writing import FULL, replacing, writing

_HOME = {
    # Programs: affine maps of the parameters, their values, and what a problem may hold.
    "AffineMap": "program.program",
    "Values": "program.program",
    "check_leaves": "program.compile",
    # Solving: the shared engine, its solvers and answers, proofs of what cannot be solved.
    "Solver": "engine.solvers.contract",
    "ValueKinkWarning": "engine.engine",
    "default_engine": "engine.registry",
    "endless": "engine.elastic",
    # Integers: the points of a box and those among them that are feasible.
    "all_points": "integer.enumeration",
    "box_size": "integer.enumeration",
    "check_box": "integer.oracle",
    "feasible_points": "integer.feasibility",
    # The surrogate of an integer decision: temperatures, probabilities, proposals, solved points.
    "Draws": "surrogate.proposal",
    "Energy": "surrogate.proposal",
    "Proposal": "surrogate.proposal",
    "ProposalInput": "surrogate.proposal",
    "SolvedCandidates": "surrogate.solved_candidates",
    "Stratified": "surrogate.proposal",
    "Temperature": "surrogate.energy",
    "check_temperature": "surrogate.energy",
    "compute_temperature": "surrogate.energy",
    "effective_sample_size": "surrogate.energy",
    "energy_probabilities": "surrogate.energy",
    # Answers of a batch: status codes, masking or raising, and messages about unsolved items.
    "OnFailure": "status",
    "Statuses": "status",
    "check_on_failure": "status",
    "describe_unsolved": "status",
    "no_unsolved_warnings": "status",
    "solve_error": "status",
    "usable": "status",
    "warns_unsolved": "status",
    # Transforms of PyTorch: refused, or kept out of a graph.
    "refuse_transforms": "transforms",
    "refuse_vmap": "transforms",
    "untraced": "transforms",
    "unwrapped": "transforms",
    # Arguments: checks, and conversion to tensors.
    "check_same_index": "checks",
    "directory": "checks",
    "finite": "checks",
    "number": "checks",
    "numbers": "checks",
    "real": "checks",
    "row_weights": "tensors",
    "tensor": "tensors",
    "weighted_mean": "tensors",
    "whole": "checks",
    # Dictionaries by CVXPY's leaves, which survive pickling.
    "Keyed": "numbering",
    "Numbered": "numbering",
    "key_text": "numbering",
    "keyed_as": "numbering",
    # Files: safe to load, and written whole or not at all; optional packages.
    "FULL": "writing",
    "absent": "extras",
    "files": "files",
    "is_count": "files",
    "is_number": "files",
    "misfits": "files",
    "must": "files",
    "needs": "extras",
    "replacing": "writing",
    "require": "extras",
    "writing": "writing",
}
_MODULES = ("files",)

__all__ = [
    "FULL",
    "AffineMap",
    "Draws",
    "Energy",
    "Keyed",
    "Numbered",
    "OnFailure",
    "Proposal",
    "ProposalInput",
    "SolvedCandidates",
    "Solver",
    "Statuses",
    "Stratified",
    "Temperature",
    "ValueKinkWarning",
    "Values",
    "absent",
    "all_points",
    "box_size",
    "check_box",
    "check_leaves",
    "check_on_failure",
    "check_same_index",
    "check_temperature",
    "compute_temperature",
    "default_engine",
    "describe_unsolved",
    "directory",
    "effective_sample_size",
    "endless",
    "energy_probabilities",
    "feasible_points",
    "files",
    "finite",
    "is_count",
    "is_number",
    "key_text",
    "keyed_as",
    "misfits",
    "must",
    "needs",
    "no_unsolved_warnings",
    "number",
    "numbers",
    "real",
    "refuse_transforms",
    "refuse_vmap",
    "replacing",
    "require",
    "row_weights",
    "solve_error",
    "tensor",
    "untraced",
    "unwrapped",
    "usable",
    "warns_unsolved",
    "weighted_mean",
    "whole",
    "writing",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"conelayers.{_HOME[name]}")
    return module if name in _MODULES else getattr(module, name)


def __dir__() -> list[str]:
    return sorted(_HOME)
