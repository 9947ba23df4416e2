"""Ask the simulated platform for evidence. This half ships in the image."""

__all__ = ["collector"]
