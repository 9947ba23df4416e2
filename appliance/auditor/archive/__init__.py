"""The archive of a pack: its one form, the kinds of its members, its manifest. Nothing is judged here.
"""

__all__ = ["manifest", "members", "zipped"]
