"""How batches are solved: the contract, our own method, and those of others."""
