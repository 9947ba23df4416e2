"""Packages by pinned hash: resolve, fetch, unpack."""
