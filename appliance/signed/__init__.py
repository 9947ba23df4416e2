"""Documents that people signed: approvals, tenants, machines, publishers, successors, timestamps,
bulletins."""

__all__ = ["approvals", "bundle", "desk", "feed", "machines", "publisher", "releases", "successor", "tenants",
           "timestamps"]
