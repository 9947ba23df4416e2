"""Predictions for Google's machines: from its endorsement, its list of memory and its log."""

__all__ = ["machine"]
