"""A case: the things that a judge of evidence is given, expects and records. Every platform's
judging half stands on them."""

__all__ = [
    "certified", "event_log", "expected", "given", "judge", "machine", "measurements", "reading", "record", "rule",
    "terms",
]
