"""Messages to tokens to text."""

__all__ = ["breakers", "stops", "template"]
