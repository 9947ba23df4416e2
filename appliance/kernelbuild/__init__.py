"""Build kernels ahead of time, and keep what was built."""

__all__ = ["build", "cache"]
