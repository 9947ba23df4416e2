"""Answer a request that was admitted, and record it."""

__all__ = ["admit", "cards", "context", "exchange", "guard", "metrics", "respond"]
