"""Engines by name, looked for without being imported."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import Literal

from conelayers.derivative.gradients import Exact, Smoothed
from conelayers.engine.engine import Engine
from conelayers.engine.solvers.automatic import Automatic
from conelayers.engine.solvers.clarabel import Clarabel
from conelayers.engine.solvers.contract import Solver
from conelayers.engine.solvers.interior import Interior
from conelayers.engine.solvers.moreau import Moreau
from conelayers.engine.solvers.polished import Polished
from conelayers.errors import ModelError

SOLVERS: dict[str, Callable[[], Solver]] = {
    "auto": Automatic,
    "batched": Interior,
    "torch": partial(Interior, algebra="torch", name="torch"),
    "moreau": Moreau,
    "clarabel": Clarabel,
}
"""Solvers by the name of their engine; "torch" is what "batched" runs on a GPU, wherever the data are."""

RESCUE = 1e-12
"""Tolerance of the second route: an objective may be a thousand times smaller than the data that it is judged by."""


def make_engine(
    engine: str | Solver | Engine = "auto",
    gradient: Literal["exact", "smoothed"] | Exact | Smoothed = "exact",
) -> Engine:
    """An engine from its name ("auto": what suits each program best), a solver, or an engine itself."""
    if isinstance(engine, Engine):
        return engine
    if isinstance(gradient, str):
        if gradient not in ("exact", "smoothed"):
            raise ModelError(f"gradient must be 'exact' or 'smoothed', not {gradient!r}.")
        gradient = Exact() if gradient == "exact" else Smoothed()
    if not isinstance(gradient, Exact | Smoothed):
        raise ModelError(f"gradient must be 'exact', 'smoothed', Exact() or Smoothed(level), not {gradient!r}.")
    if engine == "diffcp":
        warnings.warn("Engine 'diffcp' is now 'clarabel', with our own derivative.", FutureWarning, stacklevel=3)
        engine = "clarabel"
    if isinstance(engine, str):
        if engine not in SOLVERS:
            raise ModelError(f"There is no engine {engine!r}: choose one of {sorted(SOLVERS)}.")
        engine = SOLVERS[engine]()
    return Engine(engine, Polished(Clarabel(RESCUE)), gradient)


@cache
def default_engine() -> Engine:
    """What solves wherever no engine was chosen: one for all, so that what it built once is used again."""
    return make_engine()
