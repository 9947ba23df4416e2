"""The policy language as a whole: its reference, what versions of it differ in, and the upgrade."""

__all__ = ["json_schema", "redacted", "reference", "tables", "upgrade"]
