"""All findings in a policy, with fixes and warnings. Desk tools have them, the image has not.

Whether a policy is valid is decided elsewhere: `policy/hcl`, `bind`, `rules`.
"""

__all__ = ["binding", "checking", "fixes", "parser", "report"]
