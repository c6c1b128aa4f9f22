"""Adapters for third-party integer solvers."""
