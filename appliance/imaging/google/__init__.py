"""Predictions for Google's machines: its endorsement, the list of memory that it hands over, and its log."""

__all__ = ["machine"]
