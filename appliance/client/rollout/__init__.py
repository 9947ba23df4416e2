"""What a change of policy, tenant list or image touches: who refuses, and in which order to go.

Nothing here asks an appliance. It predicts what the judges of this package say afterwards.
"""

__all__ = ["plan"]
