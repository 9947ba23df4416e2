"""Judge the evidence of Intel TDX: signatures, the policy's rules, and words for people.

This half is the verifier's and does not ship.
"""

__all__ = ["judge", "pck", "pcs", "validate", "verify"]
