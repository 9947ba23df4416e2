"""Documents that people signed: approvals, tenant lists, publishers."""

__all__ = ["approvals", "publisher", "tenants"]
