"""Packs for auditors: gathered from an operator's files, and judged again by whoever takes them."""

__all__ = ["gather", "judge"]
