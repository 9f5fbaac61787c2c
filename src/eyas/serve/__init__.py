"""Generation: draft -> verify -> extend over a key-value pool, for a batch of requests."""
