"""Formats whose calls are JSON objects, one file each: `shape` reads and writes them all."""

__all__ = ["command", "generic", "granite", "hermes", "llama", "marked", "mistral", "phi"]
