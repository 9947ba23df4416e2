"""Models that the boot loads and serves."""
