"""Models that the boot loads and serves."""

__all__ = ["declared", "interval", "load", "price"]
