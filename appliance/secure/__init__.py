"""Memory that is locked, and wiped."""
