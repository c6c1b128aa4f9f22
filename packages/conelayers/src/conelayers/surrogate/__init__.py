"""The energy-based surrogate of an integer decision, and the proposals that draw its points."""
