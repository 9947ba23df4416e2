"""AMD SEV-SNP: bytes of reports, signatures, validation, and words for people."""

__all__ = ["layout", "table"]
