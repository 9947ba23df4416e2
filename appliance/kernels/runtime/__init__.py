"""The compiled library, its threads and tables, and the check at its border."""

__all__ = [
    "ahead", "boundary", "memory", "quota", "signature", "table", "targets", "team", "threads",
]
