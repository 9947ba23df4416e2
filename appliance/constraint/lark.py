"""Grammars in Lark, made ready: schemas in them are checked and written again, names of control
tokens become tokens or text.

Text of a grammar is read as llguidance reads it, token for token, so that no rule, schema or
bracket is seen by one reader alone. Text that two readers could cut differently is refused. So are
rules with parameters: a rule that counts has no end to what llguidance derives from it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from appliance.constraint import common, depth, size
from appliance.constraint.schema import rewriter
from appliance.constraint.schema.place import SchemaPath
from appliance.errors import ConstraintError

MOST = 8 << 20  # characters, schemas included
DEEPEST = 32  # brackets within brackets

# Each alternative takes what it can and gives nothing back, so time grows with the text alone.
_TOKEN = re.compile(r"""
    (?P<blank>[ \t]++) | (?P<comment>(?:\#|//)[^\n]*+) | (?P<line>\r?\n)
    | (?P<text>"(?:[^"\\\n]|\\.)*+"i?) | (?P<regex>/(?:[^/\\\n]|\\.)++/[imslux]*+) | (?P<keyword>%[A-Za-z_]++)
    | (?P<control><[^<>\s]++>) | (?P<name>[!?]{0,2}[A-Za-z_][A-Za-z0-9_-]*+) | (?P<number>[0-9]++(?![0-9A-Za-z_]))
    | (?P<open>[(\[{]) | (?P<close>[)\]}]) | (?P<sign>->|\.\.|:(?!:)|[-+*?,.~|&=])""", re.VERBOSE)
_RULE = re.compile(r"[!?]{0,2}_?(?:[a-z][a-z0-9_-]*+|[A-Z][A-Z0-9_-]*+)")
_NESTING = re.compile(r"\\.|[\[\]()]", re.DOTALL)
_BLANKS = re.compile(r"\s*+")
_REST = re.compile(r"[^\n]*+")  # of a line
_IGNORED = "%ignore"  # stands for the rule of what may come anywhere


@dataclass(frozen=True, slots=True)
class _LarkToken:
    """A token of a grammar, as llguidance is to read it."""

    kind: str
    text: str
    line: int
    long: bool = False  # whether it may force more text than is laid out ahead


def prepare(text: str, controls: Mapping[str, int], *, spell_out: bool = False) -> str:
    """The grammar for llguidance. `controls`: control tokens by their text. `spell_out`:
    schemas without `oneOf`. ConstraintError for a schema within it, with its path, and for what is
    not allowed in a grammar."""
    if len(text) > MOST:
        raise ConstraintError(f"the grammar has {len(text)} characters", hint=f"at most {MOST} are allowed")
    parts = list(_parts(text, controls, spell_out=spell_out))
    size.check(sum(map(_weight, parts)))
    rules = _rules(parts)
    for start in (_IGNORED, "start"):  # in the order in which llguidance follows them
        depth.check(rules, start)
    written = "".join(part.text for part in parts)
    return without_forcing(written) if any(part.long for part in parts) else written


def line_of(text: str, controls: Mapping[str, int], line: int, column: int) -> int:
    """The line of a grammar of which `prepare` made what stands at a place of its result."""
    parts = list(_parts(text, controls, spell_out=False))
    at, width, found = 1 + any(part.long for part in parts), 0, 1
    for part in parts:
        if at > line or (at == line and width >= column):
            break
        found = part.line
        at, width = (at + 1, 0) if part.kind == "line" else (at, width + len(part.text))
    return found


def without_forcing(text: str) -> str:
    """A grammar whose answers are masked token by token, nothing laid out ahead."""
    return '%llguidance {"no_forcing": true}\n' + text


def _parts(text: str, controls: Mapping[str, int], *, spell_out: bool) -> Iterator[_LarkToken]:
    """The tokens of a grammar, ready. ConstraintError for what is none."""
    at, line, budget, imported = 0, 1, rewriter.Allowance(), dict[str, str]()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _refused("something that is no part of a grammar", line)
        kind, found, begun, at = str(match.lastgroup), match[0], at, match.end()
        long = (size.forces(found) if kind == "regex" else len(found) if kind == "text" else 0) > size.FORCED
        match kind:
            case "keyword" if found == "%json":
                value, at = _value(text, _end(_BLANKS, text, at), found)
                written = rewriter.rewrite(value, budget, spell_out=spell_out)
                found, long = "%json " + rewriter.as_text(written), size.is_long(written)
            case "keyword" if found == "%llguidance":
                value, at = _value(text, _end(_BLANKS, text, at), found)
                kind, found, long = "comment", "", _is_unforced(value, line)
            case "keyword" if found == "%import":
                begun, at = at, _end(_REST, text, at)
                yield from _imported(text[begun:at], line, imported)
                continue
            case "keyword" if found != "%ignore":
                raise _refused("a % that is none of %json, %ignore, %import and %llguidance", line)
            case "name" if _RULE.fullmatch(found) is None:
                raise _refused("a name that is neither in small nor in capital letters", line)
            case "regex":
                _check_depth(found)
            case "control" if not found.startswith("<[") and found not in controls:
                found = json.dumps(found, ensure_ascii=False)
        yield _LarkToken(kind, found, line, long)
        line += text.count("\n", begun, at)


def _imported(rest: str, line: int, known: dict[str, str]) -> Iterator[_LarkToken]:
    """The definitions of terminals that a line imports, but for those that are `known` already."""
    for name, pattern in common.imports(rest.partition("//")[0].rstrip(), line).items():
        if known.get(name) != pattern:
            known[name] = pattern
            yield from (_LarkToken("name", name, line), _LarkToken("sign", ":", line), _LarkToken("blank", " ", line),
                        _LarkToken("regex", f"/{pattern}/", line), _LarkToken("line", "\n", line))


def _is_unforced(header: Mapping[str, object], line: int) -> bool:
    """Whether a header asks for no forced text. An empty one asks for nothing."""
    if header.keys() - {"no_forcing"} or not isinstance(header.get("no_forcing", False), bool):
        raise _refused("a %llguidance header with something else than no_forcing", line)
    return bool(header.get("no_forcing"))


def _weight(part: _LarkToken) -> int:
    """The terminals and names that a token stands for."""
    if part.kind == "open":
        return size.REPEAT if part.text == "{" else 0
    return int(part.kind in ("text", "regex", "control", "name", "keyword"))


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return at if match is None else match.end()


def _rules(parts: list[_LarkToken]) -> depth.Rules:
    """The rules of a grammar, each with the names in its body and the brackets around each."""
    rules, body, brackets = dict[str, list[tuple[str, int]]](), list[tuple[str, int]](), 0
    head: int | None = None  # the place in `body` of the name that begins a line
    begun = False  # whether the line has more than blanks
    for part in parts:
        if part.kind == "open":
            brackets += 1
            if brackets > DEEPEST:
                raise _too_deep()
        elif part.kind == "close":
            brackets = max(brackets - 1, 0)
        elif part.kind == "name":
            head = head if begun else len(body)
            body.append((part.text.lstrip("!?"), brackets))
        elif part.text == ":" and part.kind == "sign" and not brackets:
            if head is None:
                raise _refused("a : that follows no name at the begin of its line", part.line)
            name = body[head][0]
            del body[head:]
            body, head = rules.setdefault(name, []), None
        elif part.text == "%ignore":
            body = rules.setdefault(_IGNORED, [])
        if part.kind == "line":
            head, begun = None, False
        else:
            begun = begun or part.kind not in ("blank", "comment")
    return rules


def _value(text: str, at: int, keyword: str) -> tuple[dict[str, object], int]:
    try:
        value, end = json.JSONDecoder().raw_decode(text, at)
    except (ValueError, RecursionError):
        raise ConstraintError(f"the grammar has {keyword} without a JSON object after it",
                              hint=keyword + " {...}") from None
    if not isinstance(value, dict):
        raise SchemaPath().refusal(f"something else than an object after {keyword}", keyword + " {...}")
    return value, end


def _check_depth(regex: str) -> None:
    """Refuse a pattern with groups too deep within each other, and classes within classes."""
    groups = classes = 0
    for match in _NESTING.finditer(regex):
        classes += (match[0] == "[") - (match[0] == "]" and classes > 0)
        if not classes:
            groups += (match[0] == "(") - (match[0] == ")")
        if groups + classes > DEEPEST:
            raise _too_deep()


def _too_deep() -> ConstraintError:
    return ConstraintError("the grammar has too many brackets within brackets", hint=f"at most {DEEPEST} are allowed")


def _refused(what: str, line: int) -> ConstraintError:
    return ConstraintError(f"the grammar has {what} in line {line}", path=f"line {line}",
                           hint="allowed are rules, each on its line and without parameters (::), terminals, %ignore, "
                                "%json, %import of common terminals and an empty %llguidance")
