"""Schemas: what is refused, by which path; what is enforced, whatever its keywords do to each other."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from appliance.constraint import spec
from appliance.constraint.schema import check_schema
from appliance.constraint.schema.kept import kept, without_one_of
from appliance.constraint.schema.languages import Work
from appliance.errors import ConstraintError
from tests.constraint.walks import accepts, compiler, walked
from tests.fuzz import constraint_fuzz, driver
from tests.support import schema_maker
from tests.support.extent import examples

REFUSED: list[tuple[Any, str]] = [
    ({"contains": {}}, "contains"), ({"uniqueItems": True}, "uniqueItems"), ({"requried": ["a"]}, "requried"),
    ({"properties": {"a": {"items": {"minContains": 1, "contains": {}}}}}, "properties.a.items.minContains"),
    ({"anyOf": [{}, {"pattern": "(?<=a)"}]}, "anyOf.1.pattern"), ({"format": "regex"}, "format"),
    ({"format": "nanoid"}, "format"),
    ({"type": "strin"}, "type"), ({"type": []}, "type"), ({"type": ["null", "null"]}, "type"), ({"type": 3}, "type"),
    ({"$ref": "https://example.org/x"}, "$ref"), ({"$ref": "#/nowhere"}, "$ref"), ({"$ref": "#anchor"}, "$ref"),
    ({"$dynamicRef": "#a"}, "$dynamicRef"), ({"properties": {"a": {"$id": "b"}}}, "properties.a.$id"),
    ({"$schema": "http://json-schema.org/draft-04/schema#"}, "$schema"), ({"$schema": 4}, "$schema"),
    ({"$defs": {"a": {"not": {"multipleOf": 2}}}, "$ref": "#/$defs/a"}, "$defs.a.not.multipleOf"),
    ({"multipleOf": 0.01}, "multipleOf"), ({"multipleOf": 0}, "multipleOf"), ({"multipleOf": 10007}, "multipleOf"),
    ({"allOf": [{"multipleOf": 101}, {"multipleOf": 103}]}, "allOf.1.multipleOf"),
    ({"minimum": "1"}, "minimum"), ({"exclusiveMinimum": True}, "exclusiveMinimum"), ({"minimum": 1e300}, "minimum"),
    ({"exclusiveMaximum": -1e300}, "exclusiveMaximum"),
    ({"minimum": 0.12345678901}, "minimum"), ({"enum": [2**60]}, "enum.0"), ({"const": 1e-30}, "const"),
    ({"const": "a\x01"}, "const"), ({"properties": {"\ud800": {}}}, "properties.\ud800"), ({"enum": []}, "enum"),
    ({"minLength": -1}, "minLength"), ({"maxLength": 1.5}, "maxLength"), ({"maxItems": 10**9}, "maxItems"),
    ({"minProperties": 2}, "minProperties"), ({"properties": {"a": {}}, "maxProperties": 3}, "maxProperties"),
    ({"propertyNames": {"maxLength": 3}, "properties": {"a": {}}}, "propertyNames"),
    ({"propertyNames": {"pattern": "a", "maxLength": 3}}, "propertyNames"),
    ({"patternProperties": {"^\\d$": {}}, "properties": {"é": {}}}, "patternProperties"),
    ({"prefixItems": {}}, "prefixItems"), ({"additionalItems": False}, "additionalItems"), ({"items": [{}]}, "items"),
    ({"$schema": "http://json-schema.org/draft-07/schema#", "prefixItems": [{}]}, "prefixItems"),
    ({"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#", "maxItems": 2}, "maxItems"),
    ({"unevaluatedProperties": False, "allOf": [{}]}, "allOf"), ({"not": {"pattern": "a"}}, "not.pattern"),
    ({"if": {"format": "date"}, "then": False}, "if.format"),
    ({"if": {}, "then": {"items": {"contains": 1}}}, "then.items.contains"), ({"not": {"type": [[1]]}}, "not.type"),
    ({"not": {"required": 3}}, "not.required"), ({"not": {"required": [3]}}, "not.required"), ({"not": 3}, "not"),
    ({"not": {"minimum": "x"}}, "not"), ({"dependentRequired": {"a": 3}}, "dependentRequired.a"),
    ({"type": "string", "nullable": "yes"}, "nullable"), ({"items": {"nullable": 1}}, "items.nullable"),
    ([], ""), (None, ""), (False, ""),
    ({"$ref": "#"}, ""), ({"required": ["a"], "type": "object", "properties": {"a": {"$ref": "#"}}}, ""),
    ({"type": "array", "minItems": 1, "items": {"$ref": "#"}}, ""), ({"allOf": [True, False]}, ""),
]


@pytest.mark.parametrize(("schema", "path"), REFUSED, ids=[json.dumps(schema)[:60] for schema, _ in REFUSED])
def test_what_is_not_enforced_is_refused_by_path(schema: Any, path: str) -> None:
    """With what is allowed in its place."""
    with pytest.raises(ConstraintError) as caught:
        check_schema(schema)
    assert path == caught.value.path
    assert caught.value.hint


ENFORCED: list[tuple[Any, list[str], list[str]]] = [  # schema, texts that it allows, texts that it does not
    ({"properties": {"a": {"type": "integer"}}, "type": "object"}, ['{}', '{"a":1}', '{"b":[]}', '{"a":1,"b":"x"}'],
     ['{"a":"x"}', '{"\\u0061":"x"}', '{"b":1,"a":"x"}', '{"a": 1}', '[]']),
    ({"enum": [1, "1", None, {"a": [True]}]}, ['1', '"1"', 'null', '{"a":[true]}'], ['true', '1.5', '{"a":[1]}', '{}']),
    ({"type": "number", "exclusiveMaximum": 1}, ['0.5', '-3', '0.999999999'], ['1', '1.0', '0.99999999999999999999']),
    ({"type": "integer", "exclusiveMinimum": 2.5, "maximum": 7.9}, ['3', '7'], ['2', '8', '3.5']),
    ({"type": "number", "multipleOf": 3}, ['0', '-6', '300'], ['1', '3.5', '1e3']),
    ({"not": {"type": ["string", "object"]}}, ['1', 'null', '[]'], ['"a"', '{}']),
    ({"not": {"enum": ["ab", "ac", ""]}}, ['"a"', '"abc"', '"b"', '3', '"\\n"'], ['"ab"', '"ac"', '""']),
    ({"not": {"required": ["a"]}}, ['{}', '{"b":1}'], ['{"a":1}', '{"b":1,"a":1}', '3']),
    ({"if": {"properties": {"k": {"const": "x"}}, "required": ["k"]}, "then": {"required": ["n"]}, "type": "object"},
     ['{"k":"x","n":1}', '{"k":"y"}', '{}'], ['{"k":"x"}', '[]']),
    ({"dependentRequired": {"a": ["b"]}}, ['{}', '{"b":1}', '{"a":1,"b":1}', '3'], ['{"a":1}']),
    ({"dependencies": {"a": {"properties": {"b": {"type": "null"}}}}}, ['{"b":1}', '{"b":null,"a":1}'],
     ['{"b":1,"a":1}']),
    ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, ['1', '"x"'], ['3', '1.5']),
    ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"}, ['{"a":1}', '{"b":1}'],
     ['{}', '{"a":1,"b":2}']),
    ({"oneOf": [{"not": {"type": "integer"}}, {"type": "number"}]}, ['"x"', '3'], ['1.5']),
    ({"propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "integer"}}, ['{"a":1}', '{}'],
     ['{"c":1}', '{"a":"x"}']),
    ({"patternProperties": {"^\\d+$": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
     ['{"12":3}', '{"a":"b"}'], ['{"12":"x"}', '{"a":1}', '{"٣":"x"}']),
    ({"additionalProperties": False, "properties": {"a": {}}, "minProperties": 1}, ['{"a":1}'], ['{}', '{"b":1}']),
    ({"unevaluatedProperties": False, "properties": {"a": {}}}, ['{"a":1}'], ['{"b":1}']),
    ({"x-note": {"not": 1}, "then": False, "maxContains": 1, "description": "d"}, ['1', '[]'], []),
    ({"$ref": "#/$defs/a%20b~1c", "$defs": {"a b/c": {"const": "yes"}}}, ['"yes"'], ['"no"']),
    ({"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"const": 1}], "additionalItems": False},
     ['[]', '[1]', '{}'], ['[2]', '[1,1]']),
    ({"type": "integer", "format": "int32"}, ['2147483647', '-2147483648'], ['2147483648', '-2147483649', '1.5']),
    ({"type": "integer", "format": "uint8", "maximum": 300}, ['0', '255'], ['-1', '256']),
    ({"type": "integer", "format": "int64", "example": 3, "xml": {"name": "x"}}, ['9007199254740993'], ['"3"']),
    ({"type": "number", "format": "double", "externalDocs": {"url": "x"}}, ['1.5'], ['"1"']),
    ({"type": "number", "minimum": -3.4028234663852886e38, "maximum": 3.4028234663852886e38}, ['1.5', '-7'], ['"1"']),
    ({"type": "integer", "minimum": -(1 << 63), "maximum": (1 << 63) - 1}, ['9007199254740992'],
     ['9223372036854775808']),
    ({"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "number"}},
     ['{"a":1}', '{}'], ['{"a":"x"}']),
    ({"type": "string", "format": "uuid4"}, ['"2eb8aa08-aa98-41ea-b4aa-73b441d16380"'],
     ['"2eb8aa08-aa98-11ea-b4aa-73b441d16380"', '"2eb8aa08-aa98-41ea-74aa-73b441d16380"']),
    ({"type": "string", "format": "nanoid", "pattern": "^[a-z]{3}$"}, ['"abc"'], ['"ab"']),
    ({"type": "string", "format": "byte"}, ['""', '"QQ=="', '"QUI="', '"QUJD"'], ['"Q"', '"QQ="', '"Q-=="']),
    ({"type": "object", "properties": {"b": {"type": "null"}}, "propertyOrdering": ["b"]}, ['{"b":null}'], ['{"b":1}']),
    ({"const": "a\"\\/\n"}, ['"a\\"\\\\/\\n"'], ['"a\\"\\\\\\/\\n"', '"a"']),
    ({"type": "string", "minLength": 2, "maxLength": 2}, ['"😀é"', '"\\\\\\""'],
     ['"a"', '"abc"', '"😀"', '"\\u0041b"']),
]


@pytest.mark.parametrize(("schema", "good", "bad"), ENFORCED, ids=[json.dumps(each)[:50] for each, *_ in ENFORCED])
def test_keywords_are_enforced(schema: Any, good: list[str], bad: list[str]) -> None:
    """Text by text; the independent validator agrees on those that it can read as meant."""
    constraint = compiler().compile(spec.JsonSchema(schema))
    assert [] == [text for text in good if not accepts(constraint, text)]
    assert [] == [text for text in bad if accepts(constraint, text)]
    assert [] == [text for text in good if schema_maker.judge(schema, text)]


NULLABLE: list[tuple[Any, list[str], list[str]]] = [
    ({"type": "string", "nullable": True}, ['"a"', 'null'], ['1', '{}']),
    ({"type": "string", "nullable": False}, ['"a"'], ['null']),
    ({"type": "string", "enum": ["a", "b"], "nullable": True}, ['"a"', 'null'], ['"c"', '1']),
    ({"$ref": "#/$defs/a", "nullable": True, "$defs": {"a": {"type": "integer", "minimum": 3}}}, ['3', 'null'], ['2']),
    ({"not": {"type": "string", "nullable": True}}, ['1', '[]'], ['null', '"a"']),
    ({"type": "object", "properties": {"a": {"anyOf": [{"type": "integer"}], "nullable": True}}, "required": ["a"]},
     ['{"a":null}', '{"a":1}'], ['{"a":"x"}', 'null'])]


@pytest.mark.parametrize(("schema", "good", "bad"), NULLABLE, ids=range(len(NULLABLE)))
def test_nullable_is_a_union_with_null(schema: Any, good: list[str], bad: list[str]) -> None:
    """OpenAPI's keyword, which JSON Schema has not."""
    constraint = compiler().compile(spec.JsonSchema(schema))
    assert (good, []) == ([text for text in good if accepts(constraint, text)],
                          [text for text in bad if accepts(constraint, text)])


@pytest.mark.slow
def test_random_schemas_have_no_wrong_answer() -> None:
    """What is accepted allows only what the validator accepts, whoever made the text."""
    accepted, count = 0, examples(300, 600)
    for seed in range(count):
        rng = random.Random(f"made {seed}")
        document = schema_maker.document(rng)
        try:
            constraint = compiler().compile(spec.JsonSchema(document))
        except ConstraintError:
            continue
        accepted += 1
        texts = [json.dumps(schema_maker.value(rng, 3), ensure_ascii=False, separators=(",", ":")) for _ in range(10)]
        texts = [text for text in texts if accepts(constraint, text)]
        texts += [text for text in (walked(constraint, rng, 150) for _ in range(4)) if text is not None]
        assert [] == [(seed, text, wrong) for text in texts if (wrong := schema_maker.judge(document, text))]
    assert accepted > count // 3


def test_a_few_seconds_of_the_fuzzing() -> None:
    """Those that `make soak` does for minutes."""
    count, finding = driver.run(constraint_fuzz.fuzz, constraint_fuzz.seeds(), seconds=examples(1, 3), seed=1, least=1)
    assert finding is None
    assert count >= 1


def test_pydantics_schemas_are_accepted() -> None:
    """A model with all that is usual in one: nested, optional, unions, dates, maps, tagged unions."""
    from datetime import date
    from typing import Annotated, Literal

    from pydantic import BaseModel, Field

    class Cat(BaseModel):
        kind: Literal["cat"]
        lives: int = Field(ge=1, le=9)

    class Dog(BaseModel):
        kind: Literal["dog"]
        names: list[str] = Field(max_length=3)

    class Owner(BaseModel):
        name: Annotated[str, Field(min_length=1, max_length=20, pattern="^[A-Z]")]
        born: date | None = None
        pets: list[Annotated[Cat | Dog, Field(discriminator="kind")]]
        scores: dict[Literal["a", "b"], float] = {}
        boss: Owner | None = None

    Owner.model_rebuild(_types_namespace={"Owner": Owner, "Cat": Cat, "Dog": Dog})
    constraint = compiler().compile(spec.JsonSchema(Owner.model_json_schema()))
    rng, count = random.Random(1), 0
    for _ in range(30):
        text = walked(constraint, rng, 400)
        if text is not None:
            Owner.model_validate_json(text)
            count += 1
    assert count >= 5


NUMBERS = {"oneOf": [{"type": "number"}, {"type": "integer"}]}


@pytest.mark.parametrize(("schema", "path", "words"), [
    (NUMBERS, "oneOf", "not told from whole ones"),
    ({"type": "object", "properties": {"a": NUMBERS}, "required": ["a"]}, "properties.a.oneOf", "not told from whole"),
    ({"oneOf": [{"type": "string"}, {"type": "string"}]}, "oneOf", "no value meets exactly one")], ids=range(3))
def test_one_of_nothing_has_its_reason(schema: Any, path: str, words: str) -> None:
    """By its path: what each value meets, and not that there is no document."""
    with pytest.raises(ConstraintError) as caught:
        compiler().compile(spec.JsonSchema(schema))
    assert (path, True) == (caught.value.path, words in caught.value.summary)


TAGGED: dict[str, Any] = {"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}
TAGS: dict[str, Any] = {name: {"type": "object", "properties": {"kind": {"const": name}, "x": {
    "type": "string", "format": "regex"}}, "required": ["kind"]} for name in "ab"}
KEPT: list[tuple[Any, list[str], Any]] = [  # schema, what is left out, what is left
    ({"properties": {"x": {"type": "string", "pattern": "(a)\\1", "minLength": 2}, "y": {"misspelt": 1}}},
     ["properties.x.pattern", "properties.y.misspelt"],
     {"properties": {"x": {"type": "string", "minLength": 2}, "y": {}}}),
    ({"properties": {"a.b": {"items": {"uniqueItems": True, "type": "array"}}}}, ["properties.a.b.items.uniqueItems"],
     {"properties": {"a.b": {"items": {"type": "array"}}}}),
    ({"not": {"pattern": "a"}, "type": "string"}, ["not"], {"type": "string"}),
    ({"if": {"format": "date"}, "then": {"minLength": 3}}, ["if"], {"then": {"minLength": 3}}),
    ({"patternProperties": {"(a)\\1": {}}, "additionalProperties": False, "required": ["b"]},
     ["patternProperties", "additionalProperties"], {"required": ["b"]}),
    ({"$defs": TAGS, **TAGGED}, ["$defs.a.properties.x.format", "$defs.b.properties.x.format"],
     {"$defs": {name: {**each, "properties": {**each["properties"], "x": {"type": "string"}}}
                for name, each in TAGS.items()}, **TAGGED}),
    ({"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer", "exclusiveMinimum": True, "minimum": 1},
     ["$schema", "exclusiveMinimum"], {"type": "integer", "minimum": 1}),
    ({"properties": {"x": {"$ref": "https://example.org/x", "type": "string"}}}, ["properties.x.$ref"],
     {"properties": {"x": {"type": "string"}}}),
    ({"minimum": 1}, [], {"minimum": 1})]


@pytest.mark.parametrize(("schema", "left_out", "left"), KEPT, ids=range(len(KEPT)))
def test_the_part_that_is_enforced(schema: Any, left_out: list[str], left: Any) -> None:
    """One keyword goes, with those that would bar what it allows; the rest is accepted as it is."""
    found, paths = kept(schema, Work())
    assert (left, left_out) == (found, [".".join(path) for path in paths])
    check_schema(found)


def test_the_part_that_is_enforced_allows_no_less() -> None:
    """Of random schemas with random faults: without the fault they are what they were."""
    faults: list[dict[str, Any]] = [{"pattern": "(?<=a)b"}, {"uniqueItems": True}, {"contains": {}},
                                    {"format": "no-such"}, {"multipleOf": 0.5}]
    count = 0
    for seed in range(examples(60, 600)):
        rng = random.Random(f"kept {seed}")
        document = schema_maker.document(rng)
        fault = rng.choice(faults)
        if not isinstance(document, dict) or fault.keys() & document.keys():
            continue
        try:
            whole = compiler().compile(spec.JsonSchema(document))
        except ConstraintError:
            continue
        found, paths = kept({**document, **fault}, Work())
        part = compiler().compile(spec.JsonSchema(found))
        assert [(name,) for name in fault] == paths
        values = [schema_maker.value(rng, 2) for _ in range(9)]
        for text in [json.dumps(value, ensure_ascii=False, separators=(",", ":")) for value in values]:
            assert accepts(whole, text) == accepts(part, text), (document, text)
            count += accepts(whole, text)
    assert count > 10


def test_any_of_for_one_of() -> None:
    """Within a schema, and not within its values."""
    schema = {"properties": {"a": NUMBERS, "b": {"const": NUMBERS}}}
    found, paths = without_one_of(schema)
    assert [("properties", "a", "oneOf")] == paths
    assert {"properties": {"a": {"allOf": [{"anyOf": NUMBERS["oneOf"]}]}, "b": {"const": NUMBERS}}} == found
