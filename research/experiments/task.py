"""What one run of an experiment is asked for, and what it gives."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from hashlib import sha256
from typing import Any

Value = str | int | float | bool
Row = dict[str, Any]
REFERENCE = "reference"
"""The protocol of what needs no training."""


@dataclass(frozen=True)
class Task:
    """One run: everything that is trained together, for one setting and one seed.

    Args:
        experiment: its name in the registry.
        protocol: how things are trained.
        method: what is trained; its rows may name several methods, where one training serves them.
        setting: the experiment's own columns, as pairs of name and value.
        seed: of everything random in the run.
        fingerprint: of the protocol's settings; no part of the identity: a result of other settings is replaced.
    """

    experiment: str
    protocol: str
    method: str
    setting: tuple[tuple[str, Value], ...] = ()
    seed: int = 0
    fingerprint: str = ""

    @property
    def id(self) -> str:
        """A name that a person can read and that no other task has, on any machine."""
        identity = [self.experiment, self.protocol, self.method, [list(pair) for pair in self.setting], self.seed]
        digest = sha256(json.dumps(identity).encode()).hexdigest()[:8]
        setting = [f"{name}{value}" for name, value in self.setting]
        words = [self.experiment, self.protocol, self.method, *setting, f"seed{self.seed}"]
        return "-".join(re.sub(r"[^A-Za-z0-9.]+", "_", word) for word in words) + f"-{digest}"

    @property
    def columns(self) -> dict[str, Value]:
        """The setting by name."""
        return dict(self.setting)


@dataclass(frozen=True)
class Outcome:
    """What a run found.

    Args:
        rows: each with ``method``, ``metric`` and ``value``.
        curves: series of numbers by method, for plots.
    """

    rows: list[Row]
    curves: dict[str, list[float]] = field(default_factory=dict)


def row(method: str, metric: str, value: float) -> Row:
    """One figure."""
    return {"method": method, "metric": metric, "value": float(value)}


def fingerprint(settings: Any) -> str:
    """A short digest of plain settings, the same wherever it is computed."""
    return sha256(json.dumps(_plain(settings), sort_keys=True).encode()).hexdigest()[:8]


def _plain(value: Any) -> Any:
    """Settings as JSON; objects by their class and fields."""
    if is_dataclass(value) and not isinstance(value, type):
        return [type(value).__name__, _plain(asdict(value))]
    if isinstance(value, Mapping):
        return {str(name): _plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)
