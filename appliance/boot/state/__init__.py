"""The state disk: sealed, in two slots and a log."""
