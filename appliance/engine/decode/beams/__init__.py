"""Beam search: which texts it goes on with, and where their keys and values lie."""

__all__ = ["lanes", "search"]
