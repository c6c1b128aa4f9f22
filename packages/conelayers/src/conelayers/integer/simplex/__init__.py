"""Branch and bound over linear relaxations, compiled with numba."""
