"""Grammars in Lark, made ready: schemas in them are checked and written again, names of control
tokens become tokens or text.

Text of a grammar is read as far as needed: strings, patterns, comments, `%json` with its object,
`<name>`. All else stays as it is; llguidance reads it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from appliance.engine.constraint import schema
from appliance.engine.constraint.place import Place
from appliance.errors import ConstraintError

MOST = 8 << 20  # characters, schemas included
DEEPEST = 32  # brackets within brackets
MOST_SCHEMAS = 16_384

_PART = re.compile(r"""
    (?P<comment>(?:\#|//)[^\n]*) | (?P<text>"(?:[^"\\\n]|\\.)*"i?) | (?P<regex>/(?:\\.|[^/\\\n])+/[imslux]*)
    | (?P<json>%json\b\s*) | (?P<other>%(?:regex|llguidance|lark|import)\b) | (?P<control><[^<>\s]+>)
    | (?P<open>[(\[{]) | (?P<close>[)\]}])""", re.VERBOSE)
_NESTING = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|[()]", re.DOTALL)


def prepared(text: str, controls: Mapping[str, int]) -> str:
    """The grammar for llguidance. `controls`: control tokens by their text. ConstraintError for a
    schema within it, with its path, and for what is not allowed in a grammar."""
    if len(text) > MOST:
        raise ConstraintError(f"the grammar has {len(text)} characters", hint=f"at most {MOST} are allowed")
    out, at, depth, schemas = list[str](), 0, 0, 0
    while (match := _PART.search(text, at)) is not None:
        out.append(text[at:match.start()])
        at = match.end()
        kind, found = match.lastgroup, match[0]
        if kind == "other":
            raise ConstraintError(f"the grammar has {found}", hint="allowed are rules, terminals and %json")
        if kind == "open":
            depth += 1
            if depth > DEEPEST:
                raise _too_deep()
        elif kind == "close":
            depth -= 1
        elif kind == "regex":
            _check_depth(found)
        elif kind == "control" and not found.startswith("<["):
            found = found if found in controls else json.dumps(found, ensure_ascii=False)
        if kind == "json":
            schemas += 1
            if schemas > MOST_SCHEMAS:
                raise ConstraintError(f"the grammar has more than {MOST_SCHEMAS} schemas", hint="use fewer")
            value, at = _value(text, at)
            found = "%json " + schema.as_text(schema.rewritten(value))
        out.append(found)
    return "".join(out) + text[at:]


def _value(text: str, at: int) -> tuple[dict[str, object], int]:
    try:
        value, end = json.JSONDecoder().raw_decode(text, at)
    except (ValueError, RecursionError):
        raise ConstraintError("the grammar has %json without a JSON object after it", hint="%json {...}") from None
    if not isinstance(value, dict):
        raise Place().refused("something else than an object after %json", "%json {...}")
    return value, end


def _check_depth(regex: str) -> None:
    depth = 0
    for match in _NESTING.finditer(regex):
        depth += (match[0] == "(") - (match[0] == ")")
        if depth > DEEPEST:
            raise _too_deep()


def _too_deep() -> ConstraintError:
    return ConstraintError("the grammar has too many brackets within brackets", hint=f"at most {DEEPEST} are allowed")
