"""What a verifier reads beside certificates: revocation lists, vendors' documents, evidence in a certificate.

None of it ships."""

__all__ = ["collateral", "dice", "pcs_answer", "requests", "revocation"]
