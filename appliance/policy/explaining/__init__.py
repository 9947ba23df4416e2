"""Why a policy is refused: all findings with their fixes, and warnings. Desk tools have it; the image has not.

Whether a policy is valid is decided elsewhere: `policy/hcl`, `bind`, `rules`."""

__all__ = ["checking", "parser", "report"]
