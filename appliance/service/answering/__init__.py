"""Answer a request that was admitted, and record it."""

__all__ = ["admit", "cards", "guard", "respond"]
