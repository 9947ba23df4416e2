"""Certificates and revocation lists, as each platform's chains need them."""

__all__ = ["chain", "collateral", "dice", "pcs_answer", "requests", "revocation"]
