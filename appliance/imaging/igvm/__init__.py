"""Files in IGVM (Independent Guest Virtual Machine), which fix an SEV-SNP launch.

They are read and written here, and their launch digest is computed. Nothing here ships."""

__all__ = ["launch", "rows"]
