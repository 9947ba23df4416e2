"""Revocation lists, vendors' documents and evidence in certificates, which only a verifier reads.
None of it ships."""

__all__ = ["collateral", "dice", "pcs_answer", "requests", "revocation"]
