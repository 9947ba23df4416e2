"""Bring an answer's events from the engine to the wire: by channels, redacted, paced."""

__all__ = ["channels", "filled", "inbox", "outbox", "parcels", "standing", "stream"]
