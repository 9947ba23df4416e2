"""The audit log: closed-schema JSON lines without content."""

__all__ = ["chain", "digests", "endpoints", "events", "log", "sink", "stdlib"]
