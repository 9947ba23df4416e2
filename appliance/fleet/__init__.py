"""A fleet's evidence, judged once and ruled again as often as somebody asks: which machines fail,
why, when, and which firmware mends them. Nothing of it runs in the image."""

__all__ = ["judging", "ruling", "whatif"]
