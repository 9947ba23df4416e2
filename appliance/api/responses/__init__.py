"""OpenAI's Responses API, as far as it asks for nothing that is stored."""

__all__ = ["adapter"]
