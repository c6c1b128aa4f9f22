"""Proposals: how the points of the surrogate of an integer decision are drawn."""

from conelayers.internals import Energy, Stratified

__all__ = ["Energy", "Stratified"]


def __dir__() -> list[str]:
    return sorted(__all__)
