"""Packages by pinned hash: resolve, fetch, unpack."""

__all__ = ["deb", "downloads", "fetching", "lockfile", "locking", "wheels"]
