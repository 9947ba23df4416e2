"""Calls of tools, and thoughts, in what models write: formats, one file and one row each."""

__all__ = ["efforts", "history", "readers", "table"]
