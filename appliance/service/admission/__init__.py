"""May a request be answered: tenants, quotas, limits, redaction."""
