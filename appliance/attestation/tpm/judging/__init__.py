"""Judge the evidence of a TPM 2.0: signatures, the policy's rules, and words for people.

This half is the verifier's and does not ship.
"""

__all__ = ["azure", "ek", "files", "judge", "origin", "protection", "validate", "verify"]
