"""Documents that people signed: approvals, tenants, machines, publishers, timestamps."""

__all__ = ["approvals", "bundle", "machines", "publisher", "releases", "tenants", "timestamps"]
