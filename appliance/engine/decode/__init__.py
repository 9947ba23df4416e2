"""Logits to tokens, for many requests at once."""

__all__ = ["beams", "events", "generation", "sampler", "seeds"]
