"""Building and predicting the VM image. Never in the image."""

__all__ = ["build", "clouds", "export", "reference"]
