"""Files in IGVM (Independent Guest Virtual Machine), which fix an SEV-SNP launch: read, written, and
their launch digest."""

__all__ = ["headers", "launch", "layout", "reader", "rows", "writer"]
