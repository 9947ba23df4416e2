"""Messages to tokens to text."""

__all__ = ["breakers", "pieces", "stops", "template"]
