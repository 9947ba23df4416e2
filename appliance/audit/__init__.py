"""The audit log: closed-schema JSON lines without content."""

__all__ = ["endpoints", "log", "stdlib"]
