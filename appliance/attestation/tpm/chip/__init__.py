"""Commands to a TPM: the device, its client, credentials and sealed keys."""

__all__ = ["client", "device", "files", "provider", "seal"]
