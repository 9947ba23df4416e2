"""TPM 2.0: bytes of quotes and logs, signatures, endorsement, validation."""

__all__ = ["abi", "container", "credential"]
