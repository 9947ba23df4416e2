"""Counts: usage of a key, records of a key, the load of the cache, hits with noise. No content, and
nothing by which one request could be told from another."""

__all__ = ["claims", "hits", "records", "usage"]
