"""The plan of a change of policy, tenant list or image: refusals, and the order of steps.

Nothing here asks an appliance. It predicts what the judges of this package say afterwards.
"""

__all__ = ["plan"]
