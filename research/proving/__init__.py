"""Benchmarks of others: their problems, data and protocols, with their published figures beside ours."""
