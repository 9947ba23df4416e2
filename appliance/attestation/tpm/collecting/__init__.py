"""Ask a TPM 2.0 for evidence. This half ships in the image."""

__all__ = ["collector"]
