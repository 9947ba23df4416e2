"""The table of endpoints for text, and what follows from it."""

__all__ = ["parameters", "table"]
