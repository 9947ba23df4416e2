"""Memory that is locked, and wiped."""

__all__ = ["derivation", "interrupts", "libcrypto", "locked", "residue", "stacks", "wipe"]
