"""Attention over a cache, for each of its formats."""
