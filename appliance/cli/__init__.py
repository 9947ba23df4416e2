"""The command line: one file per verb, no logic in it."""
