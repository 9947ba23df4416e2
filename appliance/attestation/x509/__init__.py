"""Certificates and revocation lists, as each platform's chains need them."""

__all__ = ["pem", "walks"]
