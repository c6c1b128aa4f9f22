"""The energy-based surrogate of an integer decision, and how its points are drawn."""

from drolayers.surrogate.energy import RelativeTemperature, effective_sample_size, energy_probabilities
from drolayers.surrogate.proposal import Draws, Energy, Proposal, Stratified, Summit

__all__ = [
    "Draws",
    "Energy",
    "Proposal",
    "RelativeTemperature",
    "Stratified",
    "Summit",
    "effective_sample_size",
    "energy_probabilities",
]
