"""Files that people give in the place of others, and what to do then. It explains refusals and
decides nothing, so an image is built without it."""

__all__ = ["files"]
