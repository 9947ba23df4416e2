"""Schemas and grammars that are made to cost: each takes little to send."""

from __future__ import annotations

import json
from typing import Any

from appliance.constraint import spec


def _nested(depth: int, last: Any, **more: Any) -> Any:
    for _ in range(depth):
        last = {"type": "array", "items": last, **more}
    return last


def _chain(count: int, link: Any, last: Any) -> dict[str, Any]:
    links = {str(i): link(f"#/$defs/{i + 1}") for i in range(count)}
    return {"$ref": "#/$defs/0", "$defs": {**links, str(count): last}}


def _tool(name: str, arguments: int) -> str:
    parameters = {"type": "object", "additionalProperties": False, "properties": {
        f"argument_{i}": {"type": "string", "description": "What it is for, in some words. " * 5}
        for i in range(arguments)}}
    return f'"{{\\"name\\":\\"{name}\\",\\"arguments\\":" %json {json.dumps(parameters)} "}}"'


def tools(count: int, arguments: int = 4) -> spec.Lark:
    """A call of one of many tools."""
    rules = "\n".join(f"t{i}: {_tool(f'tool_{i}', arguments)}" for i in range(count))
    return spec.Lark(f'start: "<call>" ({" | ".join(f"t{i}" for i in range(count))}) "</call>"\n{rules}')


_OBJECT = {"type": "object", "properties": {"a": {"type": "string"}}}

SCHEMAS: dict[str, Any] = {
    "deep": _nested(1000, {}), "deep arrays of many": _nested(50, {"type": "integer"}, minItems=4000, maxItems=4096),
    "values": {"enum": [f"value {i}" for i in range(50_000)]}, "too many values": {"enum": list(range(50_001))},
    "values by values": {"allOf": [{"enum": [f"v{i}" for i in range(2000)]}, {"enum": [f"v{i}" for i in range(2000)]}]},
    "branches by branches": {"allOf": [{"anyOf": [{"properties": {f"a{j}{i}": {"type": "integer"}}} for i in range(40)]}
                                       for j in range(3)]},
    "members": {"properties": {f"p{i}": {"type": "string"} for i in range(1024)}},
    "too many members": {"properties": {f"p{i}": {} for i in range(5000)}},
    "members of members": {"properties": {f"o{j}": {"type": "object", "properties": {
        f"p{i}": {"type": "string"} for i in range(900)}} for j in range(10)}},
    "too many schemas": {"properties": {f"o{j}": {"properties": {f"p{i}": {} for i in range(900)}} for j in range(20)}},
    "patterns": {"properties": {f"p{i}": {"type": "string", "maxLength": 1000,
                                          "pattern": f"^(a|b|c[a-f]{{1,900}}){{1,9}}x{i}$"} for i in range(500)}},
    "a pattern of many states": {"type": "string", "pattern": "^(.*a.{14}|b.*){5}$"},
    "a pattern that looks back": {"type": "string", "pattern": "(a|b)*a(a|b){18}", "minLength": 5},
    "formats": {"properties": {f"e{i}": {"type": "string", "format": "email", "maxLength": 254, "minLength": 6,
                                         "pattern": f"^[a-z0-9.@]+\\.(com|net{i})$"} for i in range(200)}},
    "names by patterns": {"type": "object", "patternProperties": {f"^(a|b)*a(a|b){{12}}{i}$": {} for i in range(8)}},
    "references": _chain(5000, lambda to: {"items": {"$ref": to}}, {}),
    "references twice": _chain(60, lambda to: {"allOf": [{"$ref": to}, {"$ref": to}]}, _OBJECT),
    "references in breadth": _chain(50, lambda to: {"properties": {"a": {"$ref": to}, "b": {"$ref": to}}}, _OBJECT),
    "references that merge": _chain(30, lambda to: {"properties": {"a": {"$ref": to}, "b": {"$ref": to}},
                                                    "allOf": [{"$ref": to}]}, _OBJECT),
    "a long text": {"type": "string", "minLength": 16_000, "maxLength": 16_384},
    "a value within values": {"const": json.loads("[" * 500 + "]" * 500)},
    "multiples": {"allOf": [{"multipleOf": each} for each in (9973, 9967, 2)]},
    "numbers": {"properties": {f"p{i}": {"exclusiveMinimum": -900719.25 + i, "maximum": 900719.25 - i}
                               for i in range(1000)}},
}

SPECS: dict[str, spec.Spec] = {
    **{name: spec.JsonSchema(schema) for name, schema in SCHEMAS.items()},
    "choices": spec.TextList(tuple("x" * 90 + str(i) for i in range(10_000))),
    "too many choices": spec.TextList(tuple(map(str, range(20_000)))),
    "a regex": spec.RegexText("(a|b|ab)*c{1,1000}(x|y){1,900}"),
    "repeats of repeats": spec.RegexText("(((a{1,900}){1,900}){1,900})"),
    "an ambiguous grammar": spec.Gbnf('root ::= a a a a a a a a\na ::= "x" | a a | ""\n'),
    "a grammar that begins with itself": spec.Gbnf('root ::= root root | "a"\n'),
    "a grammar without an end": spec.Gbnf('root ::= "a" root\n'),
    "repeated groups": spec.Gbnf('root ::= ((("a"{1,1000}){1,1000}){1,1000}){1,1000}\n'),
    "brackets": spec.Gbnf("root ::= " + "(" * 5000 + '"a"' + ")" * 5000),
    "rules": spec.Gbnf("root ::= r0\n" + "\n".join(f'r{i} ::= "a" r{i + 1} | r{i + 1} r{i + 1}' for i in range(3000))
                       + '\nr3000 ::= "z"\n'),
    "rules in groups": spec.Gbnf("root ::= r0\n" + "\n".join(
        f'r{i} ::= {"(" * 30} "a" r{i + 1} {")" * 30}' for i in range(20)) + '\nr20 ::= "z"\n'),
    "rules in Lark": spec.Lark("start: r0\n" + "\n".join(f"r{i}: r{i + 1} r{i + 1}" for i in range(20_000))
                               + '\nr20000: "x"'),
    "brackets in Lark": spec.Lark("start: " + "(" * 2000 + '"a"' + ")" * 2000),
    "brackets in a pattern": spec.Lark("start: /" + "(" * 2000 + "a" + ")" * 2000 + "/"),
    "patterns in Lark": spec.Lark("start: /(a|b)*a(a|b){500}/ /((x{1,300}){1,300}){1,300}/"),
    "tools": tools(10_000), "sixty tools": tools(60, 9),
    "a literal of 100 KB": spec.Gbnf('root ::= "' + "a word of it " * 8000 + '"'),
    "a literal of 32 KB": spec.Gbnf('root ::= "' + "a word of it " * 2400 + '"'),
    "5,000 words": spec.Gbnf("root ::= " + " | ".join(f'"word{i}"' for i in range(5000))),
    "5,000 words in a row": spec.Gbnf('root ::= ("!" word)+\nword ::= ' + " | ".join(
        f'"word {i}."' for i in range(5000))),
    "words that begin others": spec.Gbnf("root ::= (" + " | ".join(f'"{"ab" * i}"' for i in range(1, 300)) + ") root?"),
    "literals of many lengths": spec.Gbnf("root ::= " + " ".join(f'"{"a" * i}"' for i in range(1, 700))),
    "a class beside literals": spec.Gbnf("root ::= [a-z]+ " + " ".join(f'"word{i}"' for i in range(2000))),
    "a repeat of blanks": spec.Gbnf('root ::= "a"{1,' + " " * 250_000),
    "repeats": spec.Gbnf("root ::= " + '"a"{1,999} ' * 20_000),
    "classes in a pattern": spec.Lark("start: /" + "[" * 250_000 + "/"),
    "a text without an end": spec.Lark('start: "' + '\\"' * 120_000),
    "a line of letters": spec.Lark('start: "a"\n' + "a" * 250_000),
    "rules of small and capital letters": spec.Lark(
        'start: a0\nX: "x"\n' + "\n".join(f"a{i}: a{i + 1}X" for i in range(3000)) + '\na3000: "x"'),
    "rules in one line": spec.Lark(
        "start: a0 -> q " + " ".join(f"a{i}: a{i + 1} -> q" for i in range(3000)) + ' a3000: "x"'),
    "rules with a condition": spec.Lark("start: a0::0\n" + "\n".join(
        f"a{i}::_: a{i + 1}::_ %if true" for i in range(3000)) + '\na3000::_: "x" %if true'),
    "a rule that counts": spec.Lark('start: a::0\na::_: a::incr(_) | "x"'),
    "terminals that may come anywhere": spec.Lark(
        'start: "x"\n%ignore A0\n' + "\n".join(f"A{i}: A{i + 1}" for i in range(3000)) + '\nA3000: "x"'),
    "a long text a million times": spec.Lark('start: ("' + "word " * 800 + '" ~ 1000) ~ 1000'),
    "a long pattern a million times": spec.Lark("start: ((/(word ){800}/) ~ 1000) ~ 1000"),
    "a long text without an end": spec.Lark('start: a\na: "' + "word " * 800 + '" a'),
    "a long constant, often": spec.JsonSchema(
        {"type": "array", "minItems": 4096, "maxItems": 4096, "items": {"const": "word " * 800}}),
    "a long pattern, often": spec.JsonSchema({"type": "array", "minItems": 4096, "maxItems": 4096,
                                              "items": {"type": "string", "pattern": "^(?:abcd){4000}$"}}),
}
