"""The audit log: closed-schema JSON lines without content."""

__all__ = ["chain", "detail", "digests", "endpoints", "events", "fields", "log", "periods", "record", "retained",
           "sink"]
