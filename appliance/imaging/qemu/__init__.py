"""Boot an image in QEMU on this machine."""

__all__ = ["machine", "run", "softtpm"]
