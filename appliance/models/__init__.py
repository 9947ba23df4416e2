"""Model files: formats, block layouts, pins, and the tile source that the engine reads."""

__all__ = ["catalogue"]
