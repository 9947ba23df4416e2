"""Wishes and demands: what a parameter of a request is, and what happens to one that nobody knows.
"""

__all__ = ["ignored", "other", "parameter", "table", "unknown"]
