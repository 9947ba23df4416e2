"""The differences in meaning between two policies, each looser, tighter or neither.

Comments, and orders that mean nothing, are not differences. `client/rollout` says who refuses what
afterwards.
"""

__all__ = ["compare"]
