"""Measurements that an image will have, computed before it boots."""

__all__ = ["golden", "idblock", "predict", "snp"]
