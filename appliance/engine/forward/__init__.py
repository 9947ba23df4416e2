"""Tokens to logits: the program of a pass, its buffers, cache and tile tables."""

__all__ = ["forward", "kvcache", "packing", "persistence", "prefixes", "seats", "states", "trees"]
