"""The command line: one file per verb, no logic in it."""

__all__ = ["bars", "main", "numbers", "passphrase", "progress", "signals", "verifying"]
