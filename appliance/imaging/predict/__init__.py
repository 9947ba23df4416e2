"""Measurements that an image will have, computed before it boots."""

__all__ = ["golden", "gpt", "idblock", "predict", "snp", "uki"]
