"""The state disk: sealed, in two slots and a log."""

__all__ = ["audit_sink", "disk", "format", "snapshot"]
