"""Documents that people signed: approvals, tenants, machines, publishers, successors, timestamps.
"""

__all__ = ["approvals", "bundle", "desk", "machines", "publisher", "releases", "successor", "tenants", "timestamps"]
