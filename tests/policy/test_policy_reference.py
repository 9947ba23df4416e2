"""The reference: every field is explained, and the JSON Schema judges as the checker does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from appliance.policy.explaining.parser import parse
from appliance.policy.explaining.report import FullReport
from appliance.policy.hcl.diagnostics import SourceText
from appliance.policy.hcl.tree import Body, ListNode, Literal, Node
from appliance.policy.language import json_schema, reference
from appliance.policy.schema import frozen
from appliance.policy.schema.identifiers import _SMALL_ORDER
from tests.support.policies import BASE, in_schema, two_values, versioned_leaves, with_lines

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted([*ROOT.glob("examples/*.hcl"), *ROOT.glob("policies/*.hcl")])
LABELLED = {path for version in frozen.VERSIONS for path, entry in frozen.table(version).items()
            if entry.get("block") in ("labelled", "map")}


def values(node: Node, place: str = "") -> Any:
    """Turn a tree into the values that the JSON Schema describes: labelled blocks keyed by label."""
    if isinstance(node, Literal):
        return node.value
    if isinstance(node, ListNode):
        return [values(item) for item in node.items]
    if not isinstance(node, Body):
        raise TypeError(node)
    result: dict[str, Any] = {name: values(attribute.value) for name, attribute in node.attributes.items()}
    for block in node.blocks:
        where = f"{place}.{block.type}" if place else block.type
        content = values(block.body, where)
        if where in LABELLED:
            result.setdefault(block.type, {})[block.labels[0][0]] = content
        else:
            result[block.type] = content
    return result


def judge(text: str) -> list[str]:
    """Return what the JSON Schema of the text's version finds."""
    version = int(re.search(r"^ *schema *= ([0-9])", text, re.MULTILINE)[1])  # type: ignore[index]
    validator = jsonschema.Draft202012Validator(json_schema.json_schema(version))
    return [error.message for error in validator.iter_errors(values(parse(FullReport(SourceText(text, "")))))]


@pytest.mark.parametrize("version", frozen.VERSIONS)
def test_json_schema_is_one(version: int) -> None:
    """The schema is valid by its own meta-schema."""
    jsonschema.Draft202012Validator.check_schema(json_schema.json_schema(version))


@pytest.mark.parametrize(("block", "lines"), [("limits", "queued_requests = 1"), ("limits", 'answer_timeout = "1m"')])
def test_json_schemas_know_their_version(block: str, lines: str) -> None:
    """A field of schema 2 is of its JSON Schema alone, and neither takes a file of the other version."""
    assert [] == judge(in_schema(2, with_lines(block, lines)))
    assert judge(with_lines(block, lines))
    values_of_1 = values(parse(FullReport(SourceText(BASE, ""))))
    assert not jsonschema.Draft202012Validator(json_schema.json_schema(2)).is_valid(values_of_1)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_json_schema_accepts_examples(path: Path) -> None:
    """A valid policy is valid by the JSON Schema."""
    assert [] == judge(path.read_text())


@pytest.mark.parametrize(("block", "lines"), [
    ("limits", "prompt_tokens = 0"), ("limits", "promt_tokens = 1"), ("limits", 'prompt_tokens = "1"'),
    ("limits", 'request_size = "1MB"'), ("model", 'kv_cache = "f15"'), ("model", "context_shift = 1"),
    ("service", 'operator_may_set = ["x"]'), ("model", 'sealed_header_sha256 = "ab"'),
    ("audit", "timestamp_authority {}"),
])
def test_json_schema_refuses(block: str, lines: str) -> None:
    """What the checker refuses in a field, the JSON Schema refuses."""
    assert judge(with_lines(block, lines))


@pytest.mark.parametrize(("version", "place", "kind"), versioned_leaves(),
                         ids=lambda value: value if isinstance(value, str) else "")
def test_kinds_agree_with_their_schema(version: int, place: str, kind: Any) -> None:
    """What a kind parses, its JSON Schema accepts; null and an object are refused by both."""
    validator = jsonschema.Draft202012Validator(json_schema.of_kind(kind))
    for value in two_values(kind):
        kind.parse(value)
        assert validator.is_valid(value)
    for value in (None, {"a": 1}):
        assert not validator.is_valid(value)
        with pytest.raises(ValueError):
            kind.parse(value)
    assert kind.allowed()


@pytest.mark.parametrize("version", frozen.VERSIONS)
def test_every_field_is_in_the_manual(version: int) -> None:
    """The manual of a version has a row for each field and a heading for each block, and says what comes later."""
    text = reference.markdown(version)
    for path, entry in frozen.table(version).items():
        name = path.rpartition(".")[2]
        label = ' "label"' if entry.get("block") in ("labelled", "map") else ""
        if "block" in entry:
            assert f"# `{path}{label}`" in text
            assert f"| `{name}{label} {{}}` | Block |" in text
        else:
            assert f"| `{name}` | " in text
    assert "| `prompt_tokens` | A whole number from 1 to 16777216 | `2048` |" in text
    assert '| `first_token_timeout` | A duration from "100ms" to "1h" | `"30s"` |' in text
    rows = {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `")}
    assert rows["bundle"].endswith("| *later* |" if version == 1 else "| `keys/policy_keys` |")
    assert rows["session_persistence"].endswith("| *later* |" if version == 1 else "| `state/sessions` |")
    assert rows["provider"].endswith("now, others *later* |")
    assert "ater" not in rows["kv_cache"]
    assert rows["prompt_tokens"].endswith("| `service/answering/lengths` |")
    assert 'state {}' in rows["state {}"]
    if version == 1:
        assert rows["vault {}"].endswith("| *later* |")
    else:
        assert rows["queued_requests"].endswith("*Since schema 2.* | `service/parts/traffic` |")


def test_the_manual_says_what_a_version_changed() -> None:
    """New and ended fields, ended choices and changed meanings stand in one table; the first version has none."""
    assert "What schema" not in reference.markdown(1)
    text = reference.markdown(2)
    rows = [line for line in text[text.index("## What schema 2 changed"):text.index("## The file")].splitlines()
            if line.startswith("| `")]
    starts = {row.split("|")[1].strip(): row.split("|")[2].strip() for row in rows}
    assert starts["`state.key.vault`, `model.key.vault`"].startswith("Ended; use provider")
    assert starts["`state.key.provider`, `model.key.provider`"].startswith('Ended: "vault".')
    assert starts["`limits.queued_requests`"].startswith("New. ")
    assert "In schema 1: Requests in progress or waiting" in starts["`limits.concurrent_requests`"]


def test_descriptions_are_sentences() -> None:
    """Every description ends as a sentence does, and none is missing."""
    def walk(schema: dict[str, Any], place: str) -> None:
        assert schema["description"].rstrip().endswith((".", "`.")), place
        for name, inner in schema.get("properties", {}).items():
            walk(inner, f"{place}.{name}")
        if isinstance(schema.get("additionalProperties"), dict):
            walk({**schema["additionalProperties"], "description": "x."}, place)

    for version in frozen.VERSIONS:
        walk(json_schema.json_schema(version), "")


def test_small_order_points() -> None:
    """The refused Ed25519 keys are points whose order divides 8, by the curve's own equations (RFC 8032)."""
    p = 2**255 - 19
    d = -121665 * pow(121666, -1, p) % p

    def add(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
        t = d * a[0] * b[0] * a[1] * b[1] % p
        x = (a[0] * b[1] + a[1] * b[0]) * pow(1 + t, -1, p)
        return x % p, (a[1] * b[1] + a[0] * b[0]) * pow(1 - t, -1, p) % p

    for text in _SMALL_ORDER["ed25519"]:
        y = int.from_bytes(bytes.fromhex(text), "little") % p
        square = (y * y - 1) * pow(d * y * y + 1, -1, p) % p
        x = pow(square, (p + 3) // 8, p)
        x = x if x * x % p == square else x * pow(2, (p - 1) // 4, p) % p
        assert square == x * x % p
        point = (x, y)
        for _ in range(3):
            point = add(point, point)
        assert (0, 1) == point


def test_base_policy_is_the_least() -> None:
    """The schema's required fields are those of the smallest policy."""
    assert [] == judge(BASE)
    assert ["appliance", "tee", "tenants", "service"] == json_schema.json_schema()["required"]
