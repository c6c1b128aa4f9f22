"""Engines by name, looked for without being imported."""

from __future__ import annotations

from typing import Literal

from drolayers.conic.engine import Engine
from drolayers.conic.solvers.automatic import Automatic
from drolayers.conic.solvers.clarabel import ClarabelRescue
from drolayers.conic.solvers.contract import Backend, Exact, Smoothed
from drolayers.conic.solvers.diffcp import Diffcp
from drolayers.conic.solvers.interior import Batched
from drolayers.conic.solvers.moreau import Moreau
from drolayers.errors import ModelError

BACKENDS: dict[str, type[Automatic] | type[Moreau] | type[Batched] | type[Diffcp]] = {
    "auto": Automatic,
    "moreau": Moreau,
    "batched": Batched,
    "diffcp": Diffcp,
}
"""Engines by name."""


def make_engine(
    engine: str | Backend | Engine = "auto",
    gradient: Literal["exact", "smoothed"] | Exact | Smoothed = "exact",
    on_failure: Literal["mask", "raise"] = "mask",
) -> Engine:
    """An engine from its name ("auto": what suits each program best), a back end, or an engine itself."""
    if isinstance(engine, Engine):
        return engine
    if isinstance(gradient, str):
        if gradient not in ("exact", "smoothed"):
            raise ModelError(f"gradient must be 'exact' or 'smoothed', not {gradient!r}.")
        gradient = Exact() if gradient == "exact" else Smoothed()
    if not isinstance(gradient, Exact | Smoothed):
        raise ModelError(f"gradient must be 'exact', 'smoothed', Exact() or Smoothed(level), not {gradient!r}.")
    if isinstance(engine, str):
        if engine not in BACKENDS:
            raise ModelError(f"There is no engine {engine!r}: choose one of {sorted(BACKENDS)}.")
        quick = isinstance(gradient, Smoothed)
        backend = Automatic(quick) if engine == "auto" else BACKENDS[engine]()
        return Engine(backend, ClarabelRescue(), gradient, on_failure)
    return Engine(engine, ClarabelRescue(), gradient, on_failure)
