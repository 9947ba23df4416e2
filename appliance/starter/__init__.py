"""A first deployment: a few choices become a folder with a commented policy, its keys and the next
commands. Nothing here ships."""

__all__ = ["choices", "folder", "steps"]
