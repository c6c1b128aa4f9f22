"""A batched interior-point method: the loop once, over two algebras."""
