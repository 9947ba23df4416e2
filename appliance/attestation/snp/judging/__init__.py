"""Judge the evidence of AMD SEV-SNP: signatures, the policy's rules, and words for people.

This half is the verifier's and does not ship.
"""

__all__ = ["abi", "bulletins", "certificate", "judge", "kds", "validate", "verify"]
