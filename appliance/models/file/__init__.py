"""Model files: headers, block formats, tiling, pins."""

__all__ = [
    "cursor", "disk", "gguf", "gguf_kind", "layout", "metadata", "opened", "pins", "quants",
    "roles", "shards", "tiling",
]
