"""HCL text to a tree of literals, with positions, and back."""
