"""Measurements that an image will have, computed before it boots."""

__all__ = ["clouds", "firmware", "golden", "idblock", "predict", "snp", "tdx", "tpm"]
