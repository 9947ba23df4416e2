"""The deployment that belongs to this machine: the launch disk, and what binds it."""

__all__ = ["bind", "launchdisk"]
