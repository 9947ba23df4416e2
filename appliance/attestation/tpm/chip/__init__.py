"""Commands to a TPM: the device, its client, credentials and sealed keys."""
