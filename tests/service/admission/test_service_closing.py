"""Objects of a schema are closed where that forbids nothing that the schema names."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.service.admission.closing import close_objects

A: dict[str, Any] = {"properties": {"a": {"type": "integer"}}}
SHUT = {**A, "additionalProperties": False}
CASES: list[tuple[Any, Any]] = [
    (A, SHUT), ({**A, "required": ["a"]}, {**SHUT, "required": ["a"]}), (True, True), ({}, {}),
    ({"type": "object"}, {"type": "object"}), ({"properties": {}}, {"properties": {}}),
    ({"items": A}, {"items": SHUT}), ({"items": [A]}, {"items": [SHUT]}), ({"prefixItems": [A]},
                                                                        {"prefixItems": [SHUT]}),
    ({"properties": {"b": A}}, {"properties": {"b": SHUT}, "additionalProperties": False}),
    ({"anyOf": [A, {"type": "null"}]}, {"anyOf": [SHUT, {"type": "null"}]}),
    ({"$defs": {"x": A}, "$ref": "#/$defs/x"}, {"$defs": {"x": SHUT}, "$ref": "#/$defs/x"}),
    ({"additionalProperties": A}, {"additionalProperties": SHUT}),
]
OPEN: list[dict[str, Any]] = [
    {**A, "required": ["b"]}, {**A, "additionalProperties": True}, {**A, "additionalProperties": {"type": "string"}},
    {**A, "patternProperties": {"^x": {}}}, {**A, "minProperties": 2}, {**A, "anyOf": [A]}, {"allOf": [A, A]},
    {"properties": {"b": A}, "allOf": [A]}, {**A, "$ref": "#/$defs/x"}, {"not": A}, {**A, "unevaluatedProperties": {}}]


@pytest.mark.parametrize(("schema", "expected"), CASES, ids=range(len(CASES)))
def test_what_is_closed(schema: Any, expected: Any) -> None:
    """Objects with `properties`, wherever they stand, and nothing else."""
    assert expected == close_objects(schema)
    assert expected == close_objects(expected)


@pytest.mark.parametrize("schema", OPEN, ids=range(len(OPEN)))
def test_what_stays_open(schema: dict[str, Any]) -> None:
    """Objects that say themselves what more they have, and those that several schemas describe."""
    assert schema == close_objects(schema)
