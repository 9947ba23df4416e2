"""Formats whose calls are a name, then a JSON object of arguments, one file each: `shape` reads and
writes them all."""

__all__ = ["deepseek", "functionary", "kimi", "mistral_args", "solar"]
