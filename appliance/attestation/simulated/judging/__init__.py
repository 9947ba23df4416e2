"""Judge the evidence of the simulated platform: signatures, the policy's rules, and words for people.

This half is the verifier's and does not ship."""

__all__ = ["judge"]
