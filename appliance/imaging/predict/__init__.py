"""Measurements that an image will have, computed before it boots."""
