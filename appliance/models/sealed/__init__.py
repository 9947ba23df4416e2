"""The sealed container: its header, and its tiles."""

__all__ = ["header", "order", "reader"]
