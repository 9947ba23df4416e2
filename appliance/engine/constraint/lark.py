"""Grammars in Lark, made ready: schemas in them are checked and written again, names of control
tokens become tokens or text.

Text of a grammar is read as far as needed: strings, patterns, comments, `%json` with its object,
`<name>`. All else stays as it is; llguidance reads it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from appliance.engine.constraint import depth
from appliance.engine.constraint.schema import rewriter
from appliance.engine.constraint.schema.place import Place
from appliance.errors import ConstraintError

MOST = 8 << 20  # characters, schemas included
DEEPEST = 32  # brackets within brackets

_PART = re.compile(r"""
    (?P<comment>(?:\#|//)[^\n]*) | (?P<text>"(?:[^"\\\n]|\\.)*"i?) | (?P<regex>/(?:\\.|[^/\\\n])+/[imslux]*)
    | (?P<json>%json\b\s*) | (?P<other>%(?:regex|llguidance|lark|import)\b) | (?P<control><[^<>\s]+>)
    | (?P<open>[(\[{]) | (?P<close>[)\]}])""", re.VERBOSE)
_RULE = re.compile(r"^[ \t]*[!?]?(_?[A-Za-z][A-Za-z0-9_-]*)[^\n:]*:(?!:)", re.MULTILINE)
_NAME = re.compile(r"[(\[{)\]}]|_?[A-Za-z][A-Za-z0-9_-]*")
_NESTING = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|[()]", re.DOTALL)


def prepared(text: str, controls: Mapping[str, int], *, spell_out: bool = False) -> str:
    """The grammar for llguidance. `controls`: control tokens by their text. `spell_out`:
    schemas without `oneOf`. ConstraintError for a schema within it, with its path, and for what is
    not allowed in a grammar."""
    if len(text) > MOST:
        raise ConstraintError(f"the grammar has {len(text)} characters", hint=f"at most {MOST} are allowed")
    out, code, at, brackets, budget = list[str](), list[str](), 0, 0, rewriter.Budget()
    while (match := _PART.search(text, at)) is not None:
        out.append(text[at:match.start()])
        code.append(out[-1])
        at = match.end()
        kind, found = match.lastgroup, match[0]
        if kind == "other":
            raise ConstraintError(f"the grammar has {found}", hint="allowed are rules, terminals and %json")
        if kind == "open":
            brackets += 1
            code.append(found)
            if brackets > DEEPEST:
                raise _too_deep()
        elif kind == "close":
            brackets -= 1
            code.append(found)
        elif kind == "regex":
            _check_depth(found)
        elif kind == "control" and not found.startswith("<["):
            found = found if found in controls else json.dumps(found, ensure_ascii=False)
        if kind == "json":
            value, at = _value(text, at)
            found = "%json " + rewriter.as_text(rewriter.rewritten(value, budget, spell_out=spell_out))
        out.append(found)
    depth.check(_rules("".join(code) + text[at:]), "start")
    return "".join(out) + text[at:]


def _rules(code: str) -> depth.Rules:
    """The rules of a grammar, whose strings, patterns and schemas are left out."""
    starts = [(match[1], match.start(), match.end()) for match in _RULE.finditer(code)]
    ends = [*(start for _, start, _ in starts), len(code)][1:]
    return {name: _named(code[begin:end]) for (name, _, begin), end in zip(starts, ends, strict=True)}


def _named(body: str) -> list[tuple[str, int]]:
    """The names in the body of a rule, each with the number of brackets around it."""
    found, brackets = list[tuple[str, int]](), 0
    for match in _NAME.finditer(body):
        if match[0] in "([{)]}":
            brackets += 1 if match[0] in "([{" else -1
        else:
            found.append((match[0], max(brackets, 0)))
    return found


def _value(text: str, at: int) -> tuple[dict[str, object], int]:
    try:
        value, end = json.JSONDecoder().raw_decode(text, at)
    except (ValueError, RecursionError):
        raise ConstraintError("the grammar has %json without a JSON object after it", hint="%json {...}") from None
    if not isinstance(value, dict):
        raise Place().refused("something else than an object after %json", "%json {...}")
    return value, end


def _check_depth(regex: str) -> None:
    groups = 0
    for match in _NESTING.finditer(regex):
        groups += (match[0] == "(") - (match[0] == ")")
        if groups > DEEPEST:
            raise _too_deep()


def _too_deep() -> ConstraintError:
    return ConstraintError("the grammar has too many brackets within brackets", hint=f"at most {DEEPEST} are allowed")
