"""Signed receipts for answers: their statement, and its two envelopes."""

__all__ = ["cwt", "dsse", "envelopes", "opening", "statement"]
