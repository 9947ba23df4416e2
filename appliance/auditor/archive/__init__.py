"""The archive of a pack: its one form, the kinds of its members, its manifest."""

__all__ = ["manifest", "members", "zipped"]
