"""Rows of a measurements file: what hardware may show, and of what. One module for each version."""

__all__ = ["fields", "first", "nitro", "second"]
