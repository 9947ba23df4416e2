"""What the host gives to this machine: the launch disk, and what binds it; documents to pass on."""

__all__ = ["bind", "launchdisk", "staple"]
