"""Logits to tokens, for many requests at once."""

__all__ = ["events", "generation", "masks", "sampler", "seeds"]
