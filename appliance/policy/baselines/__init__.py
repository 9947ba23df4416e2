"""Rules that an organisation has for its deployments, in HCL, and a policy held against them.

A baseline says what a deployment must be; whether a policy is valid is decided elsewhere.
"""

__all__ = ["judge", "reading"]
