"""The text parts of families that see pictures, too: one card a file."""

__all__ = ["qwen2vl", "qwen3vl"]
