"""The sealed container: its header, and its tiles."""
