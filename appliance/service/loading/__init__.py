"""Models and tenants that come and go while the service runs, by the word of a key with the role
`admin`."""

__all__ = ["changes", "tenant_lists", "wire"]
