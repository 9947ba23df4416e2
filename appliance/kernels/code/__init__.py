"""The arithmetic itself, in Python that the compiler lowers. Sources do not ship."""
