"""Formats that are like no other, one file each."""

__all__ = ["gemma", "harmony", "lfm"]
