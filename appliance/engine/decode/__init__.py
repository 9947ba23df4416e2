"""Logits to tokens, for many requests at once."""
