"""Mixed-integer cone programs as batched, differentiable PyTorch layers.

Names are loaded on first use, so that a compiled program runs where CVXPY is not installed. Errors are in
``conelayers.errors``, oracles for integer variables in ``conelayers.oracles``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conelayers.derivative.gradients import Exact, Smoothed
    from conelayers.engine.engine import Engine
    from conelayers.engine.registry import make_engine
    from conelayers.engine.solution import Solution
    from conelayers.program.compile import compile_program
    from conelayers.program.program import ConeProgram
    from conelayers.status import Derivative, Status
    from conelayers.surrogate.energy import RelativeTemperature

__version__ = "0.2.0"

_HOME = {
    "ConeLayer": "layer",
    "ConeResult": "result",
    "ConeProgram": "program.program",
    "Derivative": "status",
    "Engine": "engine.engine",
    "Exact": "derivative.gradients",
    "RelativeTemperature": "surrogate.energy",
    "Smoothed": "derivative.gradients",
    "Solution": "engine.solution",
    "Status": "status",
    "compile_program": "program.compile",
    "make_engine": "engine.registry",
}

__all__ = [
    "ConeLayer",
    "ConeProgram",
    "ConeResult",
    "Derivative",
    "Engine",
    "Exact",
    "RelativeTemperature",
    "Smoothed",
    "Solution",
    "Status",
    "compile_program",
    "make_engine",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"conelayers.{_HOME[name]}"), name)
    if name in ("errors", "oracles"):
        return import_module(f"conelayers.{name}")
    raise AttributeError(f"module 'conelayers' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*_HOME, "__version__", "errors", "oracles"})
