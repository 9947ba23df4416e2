"""Tools that people wrote for real services: forced calls of them are read as calls, and their arguments fit."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest

from appliance.constraint.schema import check_schema
from appliance.constraint.spec import Lark
from appliance.errors import ConstraintError
from appliance.text.calls.reading.pieces import Call, Said, ToolSpec
from appliance.text.calls.table import FORMATS, GENERIC
from tests.constraint.walks import compiler
from tests.support.answers import arguments_of, in_pieces
from tests.support.fetch_tool_corpus import TARGET
from tests.support.grammars import Vocabulary
from tests.support.require import absent

# The corpus names types as Python, Java and JavaScript do; these are what they are as JSON.
TYPES = {"dict": "object", "HashMap": "object", "float": "number", "double": "number", "tuple": "array",
         "Array": "array", "ArrayList": "array", "String": "string", "char": "string", "long": "integer",
         "Boolean": "boolean"}
KEPT = ("description", "enum", "required", "minItems", "maxItems", "maximum")
ALL = (*FORMATS, GENERIC)


def _schema(value: dict[str, Any]) -> dict[str, Any]:
    """A schema of the corpus as JSON Schema."""
    kind = value.get("type")
    found = {name: value[name] for name in KEPT if name in value}
    if kind not in ("any", "", None):
        found["type"] = TYPES.get(kind, kind)
    if "properties" in value:
        found["properties"] = {name: _schema(each) for name, each in value["properties"].items()}
    if "items" in value:
        found["items"] = _schema(value["items"])
    return found


def _tools() -> list[ToolSpec]:
    if not TARGET.is_file():
        absent(f"the corpus of tools is not at {TARGET}: make vocabularies")
    return [ToolSpec(each["name"].replace(".", "_"), each["description"],
                     {"type": "object", **_schema(each["parameters"])})
            for each in json.loads(TARGET.read_text())]


def _check(tools: list[ToolSpec], begin: int, step: int) -> tuple[int, int]:
    """Call every so many tools, each in the next format and beside the two tools after it. How many texts of calls
    were read, and how many tools are refused as strict ones."""
    read = refused = 0
    for place in range(begin, len(tools), step):
        form = ALL[place // step % len(ALL)]
        offered = list({each.name: each for each in tools[place:place + 3]}.values())
        try:
            for tool in offered:
                check_schema(tool.parameters)
            grammar = form.grammar(offered, required=True, parallel=place % 2 == 0)
            compiler().compile(Lark(grammar))
        except ConstraintError:
            refused += 1
            continue
        for seed in range(4):
            text = Vocabulary(()).drawn(grammar, random.Random(place + seed))
            if text is not None:
                break
        else:
            continue
        pieces = in_pieces(form.reader(offered), [text])
        calls = [piece for piece in pieces if isinstance(piece, Call)]
        assert calls, (form.name, text)
        assert not [piece for piece in pieces if isinstance(piece, Said)], (form.name, text)
        for call in calls:
            schema = next(each.parameters for each in offered if each.name == call.name)
            jsonschema.validate(json.loads(arguments_of(pieces, call.index)), schema)
        read += 1
    return read, refused


def test_forced_calls_of_real_tools_parse() -> None:
    """One tool in forty, so that each format has several."""
    read, refused = _check(_tools(), 0, 40)
    assert refused <= 2
    assert read >= 60


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_forced_calls_of_all_real_tools_parse() -> None:
    """Every tool, in one format each."""
    tools = _tools()
    read, refused = _check(tools, 0, 1)
    print(f"{len(tools)} tools: {read} calls read, {refused} refused as strict tools, the others without an end")
    assert read > len(tools) * 0.8
