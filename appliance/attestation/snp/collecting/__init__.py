"""Ask AMD SEV-SNP for evidence. This half ships in the image."""

__all__ = ["collector"]
