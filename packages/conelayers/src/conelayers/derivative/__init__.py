"""How solutions are differentiated: one theorem, and several ways to its linear system, each of which is verified."""
