"""HCL text to a tree of literals, with positions, and back."""

__all__ = ["diagnostics", "grammar", "layout", "literal", "parser", "reading", "tokens", "tree", "values"]
