"""The command line: one file per verb, no logic in it."""

__all__ = ["main", "numbers", "passphrase", "progress", "signals"]
