"""Counts that are told: usage of a key, the load of the cache, hits with noise. No content, and
nothing by which one request could be told from another."""

__all__ = ["claims", "hits", "usage"]
