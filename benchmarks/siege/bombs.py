"""Requests that take little to send and are made to cost.

A kind is a list of makers. Each makes the parameters of a request from a number, of which no two
give the same text: nothing that was compiled before helps.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.tenants.served import MODEL

Parameters = dict[str, Any]
Maker = Callable[[int], Parameters]
SMALL, LARGE = 24_000, 520_000  # characters of a grammar
LITERAL, WORDS = 200_000, 10_000
BODY = (1 << 20) - 4096  # bytes of a body, with room for its head


def _lark(text: str) -> Parameters:
    return {"structured_outputs": {"grammar": text}}


def _gbnf(text: str) -> Parameters:
    return {"grammar": text}


def _schema(value: Any) -> Parameters:
    return {"json_schema": value}


def grammars(size: int) -> list[Maker]:
    """Grammars of so many characters that backtracking patterns read for minutes."""
    return [
        lambda number: _lark(f"start: /{number}" + "[" * size + "/"),
        lambda number: _gbnf(f'root ::= "{number}"{{1,' + " " * size),
        lambda number: _lark(f'start: "{number}"\n' + "a" * size),
        lambda number: _lark(f'start: "{number}' + '\\"' * (size // 2)),
        lambda number: _lark(f'start: "{number}" ' + "(" * size),
        lambda number: _gbnf(f'root ::= "{number}" ' + "(" * (size // 2) + ")" * (size // 2)),
        lambda number: _gbnf(f'root ::= [{number}' + "\\]" * (size // 2)),
        lambda number: _lark(f'start: "{number}"\n' + "%ignore\n" * (size // 8)),
        lambda number: _gbnf(f'root ::= r{number}\n' + "".join(
            f'r{each} ::= "a" r{each + 1}\n' for each in range(number, number + size // 24))),
    ]


def _words(number: int) -> str:
    return " | ".join(f'"word{number}-{each}"' for each in range(WORDS))


LITERALS: list[Maker] = [
    lambda number: _gbnf(f'root ::= "{number}' + "a word of it " * (LITERAL // 13) + '"'),
    lambda number: _gbnf(f"root ::= {_words(number)}"),
    lambda number: _gbnf(f'root ::= "{number}' + "a" * LITERAL + '"'),
    lambda number: _gbnf(f"root ::= ([a-z] | {_words(number)})+"),
    lambda number: _lark(f'start: ("{number}' + "word " * 1600 + '" ~ 1000) ~ 1000'),
]
REPEATS: list[Maker] = [
    lambda number: _gbnf(f'root ::= "{number}" ' + '"a"{1,999} ' * 20_000),
    lambda number: _gbnf(f'root ::= "{number}" (((("a"{{1,2000}}){{1,2000}}){{1,2000}}){{1,2000}})'),
    lambda number: _gbnf(f'root ::= "{number}" ' + " ".join(f'[a-{chr(98 + each % 24)}]{{1,{each + 2}}}'
                                                              for each in range(2000))),
    lambda number: _gbnf(f'root ::= a a a a a a a a a a\na ::= "{number}" | a a | ""\n'),
    lambda number: _gbnf("root ::= (" + " | ".join(f'"{"ab" * each}{number}"' for each in range(1, 600)) + ") root?"),
]


def _nested(depth: int, last: Any, **more: Any) -> Any:
    for _ in range(depth):
        last = {"type": "array", "items": last, **more}
    return last


def _members(number: int, count: int, value: Callable[[int], Any]) -> Any:
    return {"type": "object", "properties": {f"p{number}-{each}": value(each) for each in range(count)}}


def _chain(number: int, count: int, link: Callable[[str], Any]) -> Any:
    links = {str(each): link(f"#/$defs/{each + 1}") for each in range(count)}
    return {"$ref": "#/$defs/0", "$defs": {**links, str(count): {"const": number}}}


def _branches(number: int, each: int) -> Any:
    return {"anyOf": [{"properties": {f"a{number}-{each}-{branch}": {"type": "integer"}}} for branch in range(80)]}


SCHEMAS: list[Maker] = [
    lambda number: _schema(_nested(26, {"const": number}, minItems=4000, maxItems=4096)),
    lambda number: _schema({"enum": [f"value {number} {each}" for each in range(40_000)]}),
    lambda number: _schema({"allOf": [{"enum": [f"v{number}-{each}" for each in range(4000)]}] * 2}),
    lambda number: _schema({"allOf": [_branches(number, each) for each in range(3)]}),
    lambda number: _schema(_members(number, 2000, lambda each: {"type": "string"})),
    lambda number: _schema({"properties": {f"o{number}-{outer}": _members(outer, 900, lambda each: {"type": "string"})
                                           for outer in range(20)}}),
    lambda number: _schema(_members(number, 1000, lambda each: {
        "type": "string", "maxLength": 1000, "pattern": f"^(a|b|c[a-f]{{1,900}}){{1,9}}x{each}$"})),
    lambda number: _schema(_members(number, 400, lambda each: {
        "type": "string", "format": "email", "maxLength": 254, "pattern": f"^[a-z0-9.@]+\\.(com|net{each})$"})),
    lambda number: _schema({"type": "object", "patternProperties": {
        f"^(a|b)*a(a|b){{14}}{number}-{each}$": {} for each in range(16)}}),
    lambda number: _schema(_chain(number, 10_000, lambda to: {"items": {"$ref": to}})),
    lambda number: _schema(_chain(number, 120, lambda to: {"allOf": [{"$ref": to}, {"$ref": to}]})),
    lambda number: _schema(_chain(number, 100, lambda to: {"properties": {"a": {"$ref": to}, "b": {"$ref": to}}})),
    lambda number: _schema(_chain(number, 60, lambda to: {
        "properties": {"a": {"$ref": to}, "b": {"$ref": to}}, "allOf": [{"$ref": to}]})),
    lambda number: _schema(_members(number, 2000, lambda each: {
        "exclusiveMinimum": each - 900719.25, "maximum": 900719.25 - each})),
    lambda number: _schema({"type": "array", "minItems": 4096, "maxItems": 4096,
                            "items": {"const": f"{number} " + "word " * 1600}}),
    lambda number: _schema({"allOf": [{"multipleOf": each} for each in (9973, 9967, 9949, 2 + number)]}),
]
PATTERNS: list[Maker] = [
    lambda number: {"regex": f"(a|b|ab)*c{{1,2000}}(x|y){{1,1800}}{number}"},
    lambda number: {"regex": f"{number}((((a{{1,900}}){{1,900}}){{1,900}}){{1,900}})"},
    lambda number: {"regex": f"(.*a.{{28}}{number}|b.*){{10}}"},
    lambda number: {"regex": f"{number}" + "(" * LARGE},
    lambda number: {"regex": f"{number}" + "[" * LARGE},
    lambda number: {"regex": f"{number}" + "\\d" * (LARGE // 4)},
    lambda number: {"regex": f"{number}" + "a|" * (LARGE // 4)},
    lambda number: {"regex": f"{number}" + "(a|b)*a(a|b){36}"},
    lambda number: {"regex": f"{number}" + "\\p{L}" * 20_000},
]
MASKS: list[Maker] = [
    lambda number: {"regex": f"(a|b)*a(a|b){{18}}{number}"},
    lambda number: _gbnf(f'root ::= a a a a a a a a "{number}"\na ::= "x" | a a | ""\n'),
    lambda number: _gbnf(f'root ::= [^{number % 10}]{{1,900}} "{number}" .*'),
    lambda number: {"regex": f"(.*a.{{14}}{number}|b.*){{5}}"},
    lambda number: _schema({"type": "array", "minItems": 100, "items": {
        "type": "string", "minLength": 20, "pattern": f"^[^{number % 10}]*[a-z]{{1,900}}$"}}),
]
"""Constraints that compile, and whose masks cost at each token."""
CHOICES: list[Maker] = [
    lambda number: {"guided_choice": [f"{number}-{each}-" + "x" * 180 for each in range(4096)]},
    lambda number: {"guided_choice": [f"{number}-{each}" for each in range(20_000)]},
    lambda number: {"guided_choice": [f"{number}" + "ab" * each for each in range(900)]},
    lambda number: {"guided_choice": [f"{number}" + "\U0001f600" * each for each in range(300)]},
]


def _tool(name: str, arguments: int) -> Parameters:
    argument = {"type": "string", "description": "What it is for. "}
    properties = {f"argument_{each}": argument for each in range(arguments)}
    return {"type": "function", "function": {"name": name, "strict": True, "parameters": {
        "type": "object", "properties": properties, "additionalProperties": False}}}


TOOLS: list[Maker] = [
    lambda number: {"tools": [_tool(f"t{number}_{each}", 8) for each in range(512)], "tool_choice": "required"},
    lambda number: {"tools": [_tool(f"t{number}_{each}", 1) for each in range(2048)], "tool_choice": "required"},
    lambda number: {"tools": [_tool(f"t{number}", 1000)], "tool_choice": "required"},
]
"""Calls that a chat is forced to make."""


def _body(text: str) -> bytes:
    return f'{{"model": "{MODEL}", "max_tokens": 2, {text}}}'.encode()


def _filled(before: str, unit: str, after: str, nbytes: int = BODY) -> bytes:
    return _body(before + unit * (nbytes // len(unit.encode())) + after)


BODIES: Mapping[str, Callable[[int], bytes]] = {
    "lists": lambda number: _filled(f'"prompt": [{number},', "[],", "[]]"),
    "brackets": lambda number: _filled(f'"prompt": {number}', "[", ""),
    "token ids": lambda number: _filled(f'"prompt": [{number}', ",1", "]"),
    "token ids to the bound of marks": lambda number: _filled(f'"prompt": [{number}', ",1", "]", 130_000),
    "keys": lambda number: _body(f'"prompt": "{number}", "metadata": {{' + ", ".join(
        f'"k{each}": 1' for each in range(30_000)) + "}"),
    "objects": lambda number: _body(f'"prompt": "{number}", "metadata": [' + ", ".join(
        '{"a": 1}' for each in range(30_000)) + "]"),
    "a key twice at the end": lambda number: _body(f'"prompt": "{number}", "metadata": [' + '"a",' * 30_000
                                                   + '{"b": 1, "b": 2}]'),
    "a number without an end": lambda number: _filled(f'"prompt": "{number}", "seed": ', "9", ""),
    "spaces": lambda number: _filled(f'"prompt": "{number}', " ", '"'),
    "letters": lambda number: _filled(f'"prompt": "{number}', "a", '"'),
    "words": lambda number: _filled(f'"prompt": "{number}', "ab, c! ", '"'),
    "faces": lambda number: _filled(f'"prompt": "{number}', "\U0001f600", '"'),
    "escapes": lambda number: _filled(f'"prompt": "{number}', "\\ud83d\\ude00", '"'),
    "half of a character at the end": lambda number: _filled(f'"prompt": "{number}', "\\ud83d\\ude00", '\\ud83d"'),
    "backslashes": lambda number: _filled(f'"prompt": "{number}', "\\\\", '"'),
    "quotes": lambda number: _filled(f'"prompt": "{number}', '\\"', '"'),
    "a bias of every token": lambda number: _body(f'"prompt": "{number}", "logit_bias": {{' + ", ".join(
        f'"{each}": 1' for each in range(4000)) + "}"),
    "words that break": lambda number: _body(f'"prompt": "{number}", "stop": ' + json.dumps(
        [f"{each}" * 8000 for each in range(16)])),
    "prompts": lambda number: _body('"prompt": [' + ", ".join(
        f'"{number} {each}"' for each in range(20_000)) + "]"),
}
"""Bodies of completions that cost their reader, as bytes."""


def _message(text: str) -> Parameters:
    return {"role": "user", "content": text}


CHATS: list[Maker] = [
    lambda number: {"messages": [_message(f"{number} {each}") for each in range(4096)]},
    lambda number: {"messages": [_message(f"{number}"), _message("<|im_start|>" * 60_000)]},
    lambda number: {"messages": [_message(f"{number}"), {"role": "assistant", "content": "", "tool_calls": [
        {"id": f"call{each:05}", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        for each in range(2000)]}, *({"role": "tool", "tool_call_id": f"call{each:05}", "content": "1"}
                                     for each in range(2000))]},
    lambda number: {"messages": [{"role": "user", "content": [{"type": "text", "text": f"{number}"}] * 4000}]},
]
"""Chats that cost their template."""
