"""Measurements that an image will have, computed before it boots."""

__all__ = ["clouds", "firmware", "golden", "gpt", "idblock", "predict", "snp", "tdx", "tpm", "uki"]
