"""Boot an image in QEMU on this machine."""
