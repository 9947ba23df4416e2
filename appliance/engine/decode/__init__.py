"""Logits to tokens, for many requests at once."""

__all__ = ["constrained", "events", "generation", "sampler", "seeds"]
