"""Keys that are not in the clear on the broker's disk: wrapped by a file, a token or Vault, or kept
by Trustee's key broker service."""

__all__ = ["outward", "pkcs11", "trustee", "vault", "wrapping"]
