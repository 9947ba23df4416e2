"""What differs in meaning between two policies, and whether a difference loosens or tightens.

Texts, comments and orders that mean nothing are not seen here. Who refuses what afterwards is the
client's business (`client/rollout`).
"""

__all__ = ["compare"]
