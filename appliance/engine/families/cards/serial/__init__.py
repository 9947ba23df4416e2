"""Families whose halves of a layer follow each other, as llama's: one card a file."""

__all__ = ["ernie4_5", "gemma", "granite", "llama", "minicpm", "mistral3", "phi3", "qwen2", "qwen3", "seed_oss",
           "smollm3"]
