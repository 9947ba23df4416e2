"""Ask a NitroTPM for its document. This half ships in the image."""

__all__ = ["collector"]
