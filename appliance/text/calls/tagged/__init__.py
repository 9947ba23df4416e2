"""Formats whose calls are tags, one for each argument, one file each: `shape` reads and writes them
all."""

__all__ = ["glm", "invoke", "minicpm", "qwen"]
