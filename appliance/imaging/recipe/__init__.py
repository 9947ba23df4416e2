"""The recipe of an image, as `image/` states it, and the stages of a build."""

__all__ = ["manifest", "recipe", "stages"]
