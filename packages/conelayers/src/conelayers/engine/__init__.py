"""Solve a batch of cone programs, classify every item, and choose how to differentiate."""
