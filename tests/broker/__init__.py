"""The reference broker as a team runs it."""
