"""The energy-based surrogate of an integer decision, and the proposals that draw its points."""

from drolayers.surrogate.energy import RelativeTemperature, effective_sample_size, energy_probabilities
from drolayers.surrogate.proposal import Draws, Energy, Proposal, ProposalInput, Stratified

__all__ = [
    "Draws",
    "Energy",
    "Proposal",
    "ProposalInput",
    "RelativeTemperature",
    "Stratified",
    "effective_sample_size",
    "energy_probabilities",
]
