"""Answer a request that was admitted, and record it."""

__all__ = ["cards", "context", "exchange", "guard", "metrics", "respond"]
