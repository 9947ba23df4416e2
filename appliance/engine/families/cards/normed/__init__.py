"""Families that normalise what attention and feed-forward network give: one card a file."""

__all__ = ["exaone4", "gemma3", "gemma4", "glm4", "olmo2"]
