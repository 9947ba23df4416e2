"""Documents that people signed: approvals, tenant lists, publishers."""
