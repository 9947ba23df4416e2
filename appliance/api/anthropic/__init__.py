"""Anthropic's Messages API."""

__all__ = ["adapter"]
