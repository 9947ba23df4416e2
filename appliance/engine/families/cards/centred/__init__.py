"""Families with LayerNorm, which takes the mean off: one card a file."""

__all__ = ["cohere2", "command_r", "falcon", "gpt2", "phi2", "starcoder2"]
