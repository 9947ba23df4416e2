"""Families whose halves of a layer follow each other, as llama's: one card a file."""

__all__ = ["granite", "llama", "mistral3", "phi3", "qwen2", "qwen3", "smollm3"]
