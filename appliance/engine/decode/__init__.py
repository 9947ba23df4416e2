"""Logits to tokens, for many requests at once."""

__all__ = ["batcher", "draft", "events", "generation", "prompt_share", "running", "sampler", "seeds"]
