"""The fields of a card, and the names of tensors; the cards stand in the rooms within."""

__all__ = ["card", "names"]
