"""The attack is itself tested: every planted defect is found within a small run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import drolayers.support
from conelayers.numbering import Keyed
from drolayers import Status
from drolayers.ambiguity.moment_set import MomentSet
from drolayers.ambiguity.outer import NormPower
from drolayers.ambiguity.wasserstein import Wasserstein
from drolayers.diagnosis import Diagnosis
from drolayers.problem import DecisionProblem
from drolayers.support import Box
from research.attack.invariants import SETTLED
from research.attack.run import one

SEED, PROGRAMS = 0, 60


def first_finding(kinds: tuple[str, ...], programs: int = PROGRAMS) -> int | None:
    """The number of the first program with a finding of one of these kinds."""
    for number in range(programs):
        found = [finding["kind"] for finding in one(SEED, number, SETTLED).findings]
        if any(kind in kinds for kind in found):
            return number
    return None


def flipped_sign(patch: pytest.MonkeyPatch) -> None:
    """The support function of an ellipsoid around the mirrored centre."""
    right = drolayers.support.ellipsoid_conjugate
    patch.setattr(drolayers.support, "ellipsoid_conjugate", lambda centre, *rest: right(-centre, *rest))


def wrong_factor(patch: pytest.MonkeyPatch) -> None:
    """The conjugates of squares and higher powers a tenth too small."""
    right = NormPower.conjugate

    def conjugate(self: NormPower, *rest: Any) -> Any:
        t, constraints = right(self, *rest)
        return None if t is None else 0.9 * t, constraints

    patch.setattr(NormPower, "conjugate", conjugate)


def dropped_row(patch: pytest.MonkeyPatch) -> None:
    """The support function of a box without its last condition."""
    right = Box.conjugate

    def conjugate(self: Box, *rest: Any) -> Any:
        value, constraints = right(self, *rest)
        return value, constraints[:-1]

    patch.setattr(Box, "conjugate", conjugate)


def detached_multiplier(patch: pytest.MonkeyPatch) -> None:
    """Bounds and radii that the value does not depend on."""
    for kind in (MomentSet, Wasserstein):

        def detached(self: Any, *rest: Any, right: Any = kind.feature_values) -> Any:
            return right(self, *rest).detach()

        patch.setattr(kind, "feature_values", detached)


def moved_decision(patch: pytest.MonkeyPatch) -> None:
    """Decisions that are not those of the value, by a thousandth."""
    right = DecisionProblem.decision
    patch.setattr(DecisionProblem, "decision", lambda self, primal: right(self, primal * 1.001))


def scaled_gradient(patch: pytest.MonkeyPatch) -> None:
    """Derivatives of decisions that are a twentieth too small."""
    right = DecisionProblem.decision

    def decision(self: DecisionProblem, primal: torch.Tensor) -> Keyed:
        return right(self, 0.95 * primal + 0.05 * primal.detach())

    patch.setattr(DecisionProblem, "decision", decision)


def wrong_status(patch: pytest.MonkeyPatch) -> None:
    """Every failure is called an empty set."""
    right = Diagnosis.of

    def of(self: Diagnosis, *rest: Any) -> torch.Tensor:
        status = right(self, *rest)
        return torch.where(status > int(Status.INACCURATE), int(Status.EMPTY_SET), status)

    patch.setattr(Diagnosis, "of", of)


def raw_error(patch: pytest.MonkeyPatch) -> None:
    """An error that is none of the library's own."""

    def broken(self: Any, *rest: Any) -> Any:
        raise KeyError("planted")

    patch.setattr(Wasserstein, "feature_values", broken)


WRONG = ("wrong value", "wrong decision", "wrong status")
MUTANTS: list[tuple[Callable[[pytest.MonkeyPatch], None], tuple[str, ...]]] = [
    (flipped_sign, WRONG),
    (wrong_factor, WRONG),
    (dropped_row, WRONG),
    (detached_multiplier, ("wrong value gradient",)),
    (moved_decision, ("wrong decision",)),
    (scaled_gradient, ("wrong gradient",)),
    (wrong_status, ("wrong status",)),
    (raw_error, ("raw",)),
]


@pytest.mark.parametrize(("plant", "kinds"), MUTANTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_planted_defect_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], kinds: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert first_finding(kinds) is not None
