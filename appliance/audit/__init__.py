"""The audit log: closed-schema JSON lines without content."""

__all__ = ["chain", "endpoints", "events", "log", "sink", "stdlib"]
