"""Evidence as the attesters of Trustee hand it out, one module a platform."""

__all__ = ["azure", "kbs", "quote", "snp", "tdx", "tpm"]
