"""Formats whose calls are JSON objects, one file each: `shape` reads and writes them all."""

__all__ = ["generic", "hermes", "llama", "mistral"]
