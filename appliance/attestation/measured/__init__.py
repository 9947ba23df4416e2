"""Rows of a measurements file: what hardware may show, and of what; and the arithmetic that derives
them from a portable reference."""

__all__ = ["events", "fields", "first", "launch", "nitro", "portable", "second"]
