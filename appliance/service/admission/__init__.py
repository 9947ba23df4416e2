"""May a request be answered: tenants, quotas, limits, redaction."""

__all__ = [
    "constraints", "limits", "privacy", "prompts", "quotas", "redaction", "sampling", "tenants",
    "thinking", "turns",
]
