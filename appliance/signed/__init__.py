"""Documents that people signed: approvals, tenant lists, publishers, timestamps."""

__all__ = ["approvals", "bundle", "publisher", "releases", "tenants", "timestamps"]
