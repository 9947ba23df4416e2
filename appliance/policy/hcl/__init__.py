"""HCL text to a tree of literals, with positions, and back."""

__all__ = ["diagnostics", "layout", "literal", "parser", "tree"]
