"""The claims of a pack: one row each, judged by evidence in it; and controls, which rest on claims.
"""

__all__ = ["case", "claim", "controls", "image", "retention", "table"]
