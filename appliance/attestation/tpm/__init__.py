"""TPM 2.0: bytes of quotes and logs, signatures, endorsement, validation."""

__all__ = [
    "abi", "azure", "credential", "ek", "event_log", "evidence", "origin", "validate", "verify",
]
