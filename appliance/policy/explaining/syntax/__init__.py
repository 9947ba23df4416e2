"""A policy's text that is not in form: every mistake in it, past each of them."""

__all__ = ["parser"]
