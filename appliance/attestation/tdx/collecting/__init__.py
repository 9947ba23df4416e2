"""Ask Intel TDX for evidence. This half ships in the image."""

__all__ = ["collector"]
