"""Wishes and demands: what a parameter of a request is, what happens to an unknown one, and which
go together."""

__all__ = ["features", "ignored", "other", "parameter", "table", "unknown"]
