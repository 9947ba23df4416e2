"""The state disk: sealed, in two slots and a log."""

__all__ = ["audit_sink", "device", "disk", "frames", "page_format", "page_keys", "pages", "room", "sealed_key",
           "sessions", "slots", "snapshot"]
