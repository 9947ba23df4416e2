"""The report of a pack for people: one page of HTML that needs nothing else. It judges nothing."""

__all__ = ["engagement", "leakage", "oscal", "page", "population", "span"]
