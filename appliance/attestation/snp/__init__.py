"""AMD SEV-SNP: bytes of reports, signatures, validation, and words for people."""

__all__ = ["abi", "certificate", "collect", "judge", "kds", "table", "validate", "verify"]
