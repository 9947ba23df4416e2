"""Fuzz constraints: schemas as they come and made from the bytes, patterns, grammars; compiled within their limits,
walked at random, and judged where there is a judge."""

from __future__ import annotations

import contextlib
import json
import random

import regex

from appliance.constraint import spec
from appliance.constraint.walk import Constraint
from appliance.errors import ConstraintError, EngineError
from tests.constraint.walks import accepts, compiler, walked
from tests.support import schema_maker

KINDS = b"JMRGLC"  # the first byte: JSON, made, regex, GBNF, Lark, choice
_CASES = [{"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}, "b": {"enum": ["x", 1, None]}},
           "required": ["a"], "additionalProperties": False},
          {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/x"}, {"type": "string", "pattern": "^a+b$"}]},
           "minItems": 1, "maxItems": 3, "$defs": {"x": {"type": "array", "items": {"$ref": "#/$defs/x"}}}},
          {"patternProperties": {"^[a-c]$": {"type": "number", "exclusiveMaximum": 1.5}},
           "additionalProperties": False}]


def _spec(data: bytes) -> tuple[spec.Spec, object]:
    kind, text = KINDS[data[0] % len(KINDS)] if data[:1] not in KINDS else data[0], data[1:].decode("utf-8", "replace")
    if kind == ord("J"):
        document = json.loads(text)
        return spec.JsonSchema(document), document
    if kind == ord("M"):
        document = schema_maker.document(random.Random(data))
        return spec.JsonSchema(document), document
    if kind == ord("R"):
        return spec.RegexText(text), text
    if kind == ord("G"):
        return spec.Gbnf(text), None
    return (spec.Lark(text) if kind == ord("L") else spec.TextList(tuple(text.split("|")))), None


def fuzz(data: bytes) -> None:
    """No error but the two kinds; no answer that the judge does not accept."""
    if not data:
        return
    try:
        asked, judge = _spec(data)
        constraint = compiler().compile(asked)
    except (ValueError, RecursionError, ConstraintError):
        return
    rng = random.Random(data)
    if isinstance(asked, spec.JsonSchema):
        _put(constraint, judge, rng)
    for _ in range(3):
        try:
            text = walked(constraint, rng, 120)
        except EngineError:
            return
        if text is None:
            continue
        assert isinstance(asked, spec.Lark) or accepts(constraint, text)  # there control tokens are no text
        if isinstance(asked, spec.JsonSchema):
            wrong = schema_maker.judge(judge, text)
            assert wrong is None, (text, wrong)
        elif isinstance(asked, spec.RegexText):
            assert _matches(asked.pattern, text), text
        elif isinstance(asked, spec.TextList):
            assert text in asked.texts


def _matches(pattern: str, text: str) -> bool:
    """Whether a text matches, as an independent engine says. One that goes back and forth for seconds says nothing."""
    with contextlib.suppress(TimeoutError):
        return regex.fullmatch(pattern, text, timeout=1) is not None
    return True


def _put(constraint: Constraint, document: object, rng: random.Random) -> None:
    """Values that were made without the schema get through only where the judge accepts them."""
    for _ in range(10):
        text = json.dumps(schema_maker.value(rng, 3), ensure_ascii=False, separators=(",", ":"))
        if accepts(constraint, text):
            wrong = schema_maker.judge(document, text)
            assert wrong is None, (text, wrong)


# What once took time that grew faster than the text, in short.
_SLOW = [b"Lstart: /" + b"[" * 200, b'Lstart: "a"{1,' + b" " * 200, b"Lstart: " + b"a" * 300, b"Lstart: " + b"(" * 100,
         b'Lstart: /a/i | "b"i | "c".."f"', b'Groot ::= "' + b"x" * 300 + b'"', b"Groot ::= " + b'"ab" | ' * 60 + b'"',
         b'Groot ::= "a"{1,' + b"9" * 40, b"Groot ::= " + b"(" * 100, b"R" + b"(a|b)*" * 20, b"R" + b"a{0,50}" * 10,
         b"C" + b"|".join(b"word%d" % place for place in range(60)), b'J{"enum":[' + b'"a",' * 60 + b'"b"]}',
         b'J{"type":"string","pattern":"^(a+)+$"}', b'J{"anyOf":[' + b"{}," * 40 + b"{}]}"]


def seeds() -> list[bytes]:
    """A few of each kind."""
    return [*_SLOW, *(b"J" + json.dumps(case).encode() for case in _CASES), *(b"M" + bytes([i]) for i in range(40)),
            *(b"R" + each for each in (b"^(a|b)*c{2,3}$", b"[^x]\\d+?(?:\\w|\\.)$", "é[à-ü]+".encode())),
            b'Groot ::= "a" [b-d]+ (x | "e"){1,2}\nx ::= root | "\\n" # c\n',
            b'Lstart: <|im_start|> "a" t*\nt: /[a-z]+/ | %json {"type":"object"} | ("x" start)', b"Cone|two|three"]
