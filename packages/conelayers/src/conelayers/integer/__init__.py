"""Find the best integer points of a batch of programs."""
