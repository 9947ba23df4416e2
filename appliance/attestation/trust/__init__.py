"""Roots of trust, pinned by fingerprint: the only keys that are believed without a signature over
them."""

__all__ = ["amd", "roots", "tpm", "unsafe"]
