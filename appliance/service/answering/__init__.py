"""Answer a request that was admitted, and record it."""
