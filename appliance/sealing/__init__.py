"""Sealing models, and getting them back: for publishers, on machines of their own. Never in an
image."""

__all__ = ["digests", "keyfile", "restore", "sealing"]
