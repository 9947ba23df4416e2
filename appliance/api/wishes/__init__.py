"""Wishes and demands: what a parameter of a request is, and what happens to an unknown one."""

__all__ = ["ignored", "other", "parameter", "table", "unknown"]
