"""The OpenAI-compatible HTTP service."""

__all__ = ["console"]
