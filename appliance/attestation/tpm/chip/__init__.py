"""Commands to a TPM: the device, its client, credentials and sealed keys."""

__all__ = ["activate", "client", "device", "seal"]
