"""Messages to tokens to text."""

__all__ = ["stops", "template"]
