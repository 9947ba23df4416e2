"""The state disk: sealed, in two slots and a log."""

__all__ = ["audit_sink", "device", "disk", "format", "page_format", "page_keys", "pages", "room", "sealed_key",
           "sessions", "snapshot"]
