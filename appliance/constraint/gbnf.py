"""llama.cpp's grammars, written for llguidance.

Each rule becomes a rule. Literals become as few terminals as they can (`terminals.py`), so that the
grammar is read as if each character were one.

The notation: rules `name ::= alternatives`, literals in quotes, classes in brackets, `.`, groups,
`* + ?` and `{m,n}`, comments from `#`. A rule ends where a line ends outside of brackets, unless it
goes on with `|`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from appliance.constraint import depth, size, terminals
from appliance.constraint.schema.dialects import LAST, Ranges, complement, literal, union
from appliance.errors import ConstraintError

MOST = 1 << 18  # characters of a grammar
DEEPEST = 32  # groups within groups
MOST_REPEATS = 1000
FEW = 64  # alternatives that are terminals of their own; more of them become one

# Each alternative takes what it can and gives nothing back, so time grows with the text alone.
_TOKEN = re.compile(r"""
    (?P<skip>[ \t]++|\#[^\n]*+) | (?P<line>\r?\n) | (?P<define>::=)
    | (?P<name>[A-Za-z0-9][A-Za-z0-9_-]*+|_[A-Za-z0-9_-]++)
    | (?P<text>"(?:[^"\\\n]|\\.)*+") | (?P<class>\[(?:[^\]\\\n]|\\.)*+\]) | (?P<sign>[|()*+?.])
    | (?P<repeat>\{[ ]*+[0-9]{1,6}+[ ]*+(?:,[ ]*+(?:[0-9]{1,6}+[ ]*+)?+)?+\})""", re.VERBOSE)
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([tnr\\\"\[\]^-]))")
_MEMBER = re.compile(r"\\x..|\\u.{4}|\\U.{8}|\\.|[^\\]", re.DOTALL)
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r"}


@dataclass(frozen=True, slots=True)
class _RuleToken:
    kind: str
    text: str
    line: int


def _refused(what: str, line: int) -> ConstraintError:
    return ConstraintError(f"the grammar has {what} in line {line}", path=f"line {line}",
                           hint="allowed is llama.cpp's notation, from the rule root on")


def to_lark(text: str) -> str:
    """The same grammar in llguidance's dialect of Lark. ConstraintError names the line."""
    if len(text) > MOST:
        raise ConstraintError(f"the grammar has {len(text)} characters", hint=f"at most {MOST} are allowed")
    tokens = _tokens(text)
    rules = _rules(tokens)
    if "root" not in rules:
        raise ConstraintError("the grammar has no rule root", hint="llama.cpp's grammars start there")
    depth.check({name: _named(body) for name, body in rules.items()}, "root")
    names = {name: "start" if name == "root" else f"r{index}" for index, name in enumerate(rules)}
    if _is_choice(tokens):
        return f"start: {_one_of([_characters(each.text[1:-1], each.line) for each in tokens if each.kind == 'text'])}"
    pieces = _pieces(tokens)
    size.check(sum(_weight(each, pieces) for each in tokens))
    return "\n".join(f"{names[name]}: {_RuleWriter(body, names, pieces).alternatives()}"
                     for name, body in rules.items())


def _is_choice(tokens: list[_RuleToken]) -> bool:
    """Whether a grammar is one of some literals, and nothing else."""
    content = [each for each in tokens if each.kind != "line"][2:]
    return len(content) > 1 and len(content) % 2 == 1 and all(
        each.kind == "text" and each.text != '""' for each in content[::2]) and all(
        each.text == "|" for each in content[1::2])


def _one_of(texts: Iterable[str]) -> str:
    """A terminal for one of some texts."""
    return f"/{'|'.join(map(literal, texts))}/"


def _pieces(tokens: list[_RuleToken]) -> terminals.Pieces:
    """The terminals of each literal, by its text between the quotes."""
    literals = {each.text[1:-1]: _characters(each.text[1:-1], each.line) for each in tokens if each.kind == "text"}
    written = {each.text: each for each in tokens if each.kind == "class"}
    anything = [((0, LAST),)] if any(each.text == "." for each in tokens) else []
    classes = union(*map(_members, written.values()), *anything)
    pieces = terminals.cut({text for text in literals.values() if text}, classes)
    return {written: pieces.get(text, []) for written, text in literals.items()}


def _weight(token: _RuleToken, pieces: terminals.Pieces) -> int:
    """The terminals and names that a token stands for."""
    if token.kind == "text":
        return len(pieces[token.text[1:-1]])
    return {"name": 1, "class": 1, "repeat": size.REPEAT}.get(token.kind, int(token.text == "."))


def _tokens(text: str) -> list[_RuleToken]:
    found, at, line = list[_RuleToken](), 0, 1
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _refused("something that is no part of a grammar", line)
        kind = str(match.lastgroup)
        if kind != "skip":
            found.append(_RuleToken(kind, match[0], line))
        line += match[0].count("\n")
        at = match.end()
    return found


def _rules(tokens: list[_RuleToken]) -> dict[str, list[_RuleToken]]:
    """The tokens of each rule, in order, without ends of lines."""
    rules: dict[str, list[_RuleToken]] = {}
    body: list[_RuleToken] | None = None
    content = [each for each in tokens if each.kind != "line"]
    for index, token in enumerate(content):
        following = content[index + 1] if index + 1 < len(content) else None
        if token.kind == "name" and following is not None and following.kind == "define":
            if token.text in rules:
                raise _refused("a rule that is there twice", token.line)
            body = rules[token.text] = []
        elif token.kind == "define":
            if index == 0 or content[index - 1].kind != "name":
                raise _refused("a ::= without a name", token.line)
        elif body is None:
            raise _refused("something before its first rule", token.line)
        else:
            body.append(token)
    return rules


def _named(tokens: list[_RuleToken]) -> list[tuple[str, int]]:
    """The rules that a rule names, each with the number of groups around it."""
    found, groups = list[tuple[str, int]](), 0
    for token in tokens:
        groups += (token.text == "(") - (token.text == ")") if token.kind == "sign" else 0
        if token.kind == "name":
            found.append((token.text, groups))
    return found


class _RuleWriter:
    """Writes one rule."""

    def __init__(self, tokens: list[_RuleToken], names: dict[str, str], pieces: terminals.Pieces) -> None:
        self._tokens, self._names, self._pieces = tokens, names, pieces
        self._at = self._depth = 0

    def alternatives(self) -> str:
        """The rule's alternatives, or those of a group."""
        found = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            found.append(self._sequence())
        if self._at < len(self._tokens) and not self._depth:
            raise _refused("a bracket without its counterpart", self._tokens[self._at].line)
        words = dict.fromkeys(word for _, word in found if word)
        if len(words) <= FEW:
            return " | ".join(text for text, _ in found)
        return " | ".join([_one_of(words), *(text for text, word in found if not word)])

    def _peek(self) -> str:
        return self._tokens[self._at].text if self._at < len(self._tokens) and \
            self._tokens[self._at].kind == "sign" else ""

    def _sequence(self) -> tuple[str, str]:
        """One alternative; and the text that it is, if it is a single terminal for one."""
        parts, begun = list[str](), self._at
        while self._at < len(self._tokens) and self._peek() not in ("|", ")"):
            atom = self._atom(self._tokens[self._at])
            parts.append(atom + self._repeat())
        alone = self._at == begun + 1 and self._tokens[begun].kind == "text"
        pieces = self._pieces[self._tokens[begun].text[1:-1]] if alone else []
        return " ".join(parts) or '""', pieces[0] if len(pieces) == 1 else ""

    def _atom(self, token: _RuleToken) -> str:
        self._at += 1
        if token.kind == "name":
            if token.text not in self._names:
                raise _refused("a rule that is not defined", token.line)
            return self._names[token.text]
        if token.kind == "text":
            pieces = list(map(_quoted, self._pieces[token.text[1:-1]]))
            return pieces[0] if len(pieces) == 1 else f"({' '.join(pieces)})" if pieces else '""'
        if token.kind == "class":
            return _class(token)
        if token.text == ".":
            return "/(?s:.)/"
        if token.text != "(":
            raise _refused("a sign where something else should be", token.line)
        self._depth += 1
        if self._depth > DEEPEST:
            raise _refused(f"more than {DEEPEST} groups within groups", token.line)
        inner = self.alternatives()
        self._depth -= 1
        if self._peek() != ")":
            raise _refused("a ( without its )", token.line)
        self._at += 1
        return f"({inner})"

    def _repeat(self) -> str:
        if self._peek() in ("*", "+", "?") and self._peek():
            self._at += 1
            found = self._tokens[self._at - 1].text
        elif self._at < len(self._tokens) and self._tokens[self._at].kind == "repeat":
            token = self._tokens[self._at]
            self._at += 1
            found = token.text.replace(" ", "")
            low, _, high = found[1:-1].partition(",")
            if max(int(low), int(high or 0)) > MOST_REPEATS or (high and int(high) < int(low)):
                raise _refused(f"a repeat of more than {MOST_REPEATS}, or of more than its most", token.line)
        else:
            return ""
        if self._peek() in ("*", "+", "?") and self._peek():
            raise _refused("a repeat of a repeat", self._tokens[self._at].line)
        return found


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _characters(text: str, line: int) -> str:
    """The characters that a literal or a class has, without escapes."""
    found, at = list[str](), 0
    while at < len(text):
        stop = text.find("\\", at)
        if stop != at:
            found.append(text[at:stop if stop > 0 else len(text)])
            at += len(found[-1])
            continue
        match = _ESCAPE.match(text, at)
        if match is None:
            raise _refused("an escape that is none", line)
        digits = match[1] or match[2] or match[3]
        code = int(digits, 16) if digits else 0
        if code > LAST or 0xD800 <= code <= 0xDFFF:
            raise _refused("an escape that is no character", line)
        found.append(chr(code) if digits else _CONTROLS.get(match[4], match[4]))
        at = match.end()
    return "".join(found)


def _class(token: _RuleToken) -> str:
    """A class of characters as a terminal."""
    inverted = "^" if token.text.startswith("[^") else ""
    return f"/[{inverted}{''.join(f'{_code(first)}-{_code(last)}' for first, last in _ranges(token))}]/"


def _members(token: _RuleToken) -> Ranges:
    """The code points of a class."""
    found = union(_ranges(token))
    return complement(found) if token.text.startswith("[^") else found


def _ranges(token: _RuleToken) -> Ranges:
    """The ranges that a class names, or all but those that it has, as it says them."""
    text = token.text[2 if token.text.startswith("[^") else 1:-1]
    letters, out, at = _marked(text, token.line), list[tuple[int, int]](), 0
    while at < len(letters):
        first = last = ord(letters[at][0])
        if at + 2 < len(letters) and letters[at + 1] == ("-", False):
            last = ord(letters[at + 2][0])
            if last < first:
                raise _refused("a range that is none", token.line)
            at += 2
        out.append((first, last))
        at += 1
    if not out:
        raise _refused("an empty class", token.line)
    return tuple(out)


def _marked(text: str, line: int) -> list[tuple[str, bool]]:
    """The characters of a class, and whether each was escaped."""
    parts = _MEMBER.findall(text)
    if "".join(parts) != text:
        raise _refused("an escape that is none", line)
    return [(_characters(each, line), len(each) > 1) for each in parts]


def _code(code: int) -> str:
    return f"\\x{{{code:X}}}"
