"""May a request be answered: tenants, quotas, limits, redaction."""

__all__ = ["limits", "privacy", "prompts", "quotas", "redaction", "sampling", "tenants", "turns"]
