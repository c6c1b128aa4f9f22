"""The paper's experiments and one of our own: one file a table or figure, a runner, and a report."""
