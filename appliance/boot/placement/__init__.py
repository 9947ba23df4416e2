"""Disks that the host gives to this machine: the policy, which the launch binds; documents."""

__all__ = ["bind", "launchdisk", "staple"]
