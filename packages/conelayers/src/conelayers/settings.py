"""Settings in the vocabulary of cvxpylayers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from conelayers.checks import number, whole
from conelayers.engine.engine import Engine
from conelayers.engine.solvers.contract import Solver
from conelayers.errors import ModelError

TOLERANCES = (
    "eps",
    "eps_abs",
    "eps_rel",
    "tol",
    "tolerance",
    "tol_feas",
    "tol_gap_abs",
    "tol_gap_rel",
    "abstol",
    "reltol",
)
"""Names of tolerances; the smallest that is given counts."""

ITERATIONS = ("max_iter", "max_iters")
"""Names of the largest number of iterations."""

WITHOUT_MEANING = (
    "acceleration_lookback",
    "acceleration_interval",
    "feastol",
    "lsqr",
    "mode",
    "n_jobs_backward",
    "n_jobs_forward",
    "normalize",
    "scale",
    "solve_method",
    "solver",
    "threads",
    "use_indirect",
    "verbose",
    "warm_start",
)
"""Settings of other solvers that this engine has no use for."""


PARTS = ("own", "general")
"""Attributes of a solver that delegates to one of two others."""

ENGINES = {"CLARABEL": "clarabel", "MOREAU": "moreau"}
"""Engines by the name that CVXPY has for their solver."""

OTHER_SOLVERS = ("CUCLARABEL", "DIFFCP", "ECOS", "MPAX", "SCS")
"""Solvers of cvxpylayers without an engine of their own."""


def choose_engine(
    engine: str | Solver | Engine, solver: str | None, verbose: bool = False, canon_backend: str | None = None
) -> str | Solver | Engine:
    """Return the engine for the arguments ``solver``, ``verbose`` and ``canon_backend`` of cvxpylayers.

    Solvers without an engine leave the choice to the layer, and a warning names each argument without a meaning.

    Raises:
        ModelError: the solver is not known, or an engine is named too.
    """
    ignored = [f"solver={solver!r}"] if str(solver).upper() in OTHER_SOLVERS else []
    ignored += ["verbose=True"] * bool(verbose)
    ignored += [] if canon_backend is None else [f"canon_backend={canon_backend!r}"]
    if ignored:
        _warn_without_meaning("arguments", ignored)
    if solver is None:
        return engine
    if engine != "auto":
        raise ModelError(f"Both solver={solver!r} and engine={engine!r} are named. Leave out `solver`.")
    if isinstance(solver, str) and solver.upper() in ENGINES:
        return ENGINES[solver.upper()]
    if ignored and isinstance(solver, str) and solver.upper() in OTHER_SOLVERS:
        return engine
    raise ModelError(f"Unknown solver {solver!r}. Choose a solver by `engine=`.")


def apply_solver_args(engine: Engine, solver_args: Mapping[str, Any] | None) -> Engine:
    """Return the engine with the tolerance and the number of iterations of ``solver_args``.

    They only make the engine more accurate: a looser tolerance or fewer iterations than its own are ignored.

    Raises:
        ModelError: a setting is not known.
    """
    if solver_args is not None and not isinstance(solver_args, Mapping):
        raise ModelError(f"`solver_args` must be a dict, got {type(solver_args).__name__}.")
    if not solver_args:
        return engine
    known = {*TOLERANCES, *ITERATIONS, *WITHOUT_MEANING}
    if unknown := sorted(set(solver_args) - known):
        raise ModelError(
            f"Unknown settings {unknown} in `solver_args`. Known are {[*TOLERANCES, *ITERATIONS]}; choose a solver by "
            "`engine=`."
        )
    if ignored := sorted(set(solver_args) & set(WITHOUT_MEANING)):
        _warn_without_meaning("settings", ignored)
    tolerances = [number(name, solver_args[name]) for name in TOLERANCES if name in solver_args]
    if tolerances and not min(tolerances) > 0:
        raise ModelError(f"Tolerances must be positive, got {min(tolerances)}.")
    steps = [whole(name, solver_args[name], 1) for name in ITERATIONS if name in solver_args]
    return replace(engine, solver=_tighten(engine.solver, min(tolerances, default=math.inf), max(steps, default=0)))


def _tighten(solver: Any, tolerance: float, steps: int) -> Any:
    """Return a solver, and the parts it delegates to, with at most this tolerance and at least so many steps."""
    # A looser tolerance would make derivatives impossible to verify, and fewer steps leave items unsolved.
    changes = {part: _tighten(getattr(solver, part), tolerance, steps) for part in PARTS if hasattr(solver, part)}
    changes |= {"tolerance": tolerance} if tolerance < getattr(solver, "tolerance", 0.0) else {}
    changes |= {"max_iter": steps} if steps > getattr(solver, "max_iter", steps) else {}
    return replace(solver, **changes) if changes else solver


def _warn_without_meaning(kind: str, ignored: Sequence[str]) -> None:
    """Warn of arguments or settings that are ignored."""
    warnings.warn(
        f"The {kind} {', '.join(ignored)} of cvxpylayers have no meaning for this engine and are ignored. Choose a "
        "solver by `engine=`.",
        UserWarning,
        stacklevel=5,
    )
