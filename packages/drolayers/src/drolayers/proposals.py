"""Proposals: how the points of the surrogate of an integer decision are drawn."""

from conelayers.internals import Draws, Energy, Proposal, ProposalInput, Stratified

__all__ = ["Draws", "Energy", "Proposal", "ProposalInput", "Stratified"]
