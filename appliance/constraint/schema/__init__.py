"""JSON Schemas, checked and written again for llguidance. A keyword that is not in the tables here
is refused."""

from appliance.constraint.schema.rewriter import check_schema

__all__ = ["check_schema", "dialects", "kept", "languages", "looking", "place", "rewriter"]
