"""Logits to tokens, for many requests at once."""

__all__ = ["beam_search", "events", "generation", "masks", "sampler", "seeds"]
