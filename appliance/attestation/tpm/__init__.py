"""TPM 2.0: bytes of quotes and logs, signatures, endorsement, validation."""

__all__ = ["abi", "azure", "credential", "ek", "evidence", "judge", "origin", "validate", "verify"]
