"""HCL text to tokens, in one pass: every character is looked at a bounded number of times.

HCL's native syntax as HashiCorp specifies it (github.com/hashicorp/hcl, hclsyntax/spec.md), of which a policy uses
the literals only. Templates (`${`, `%{`), control characters and bidirectional overrides (text that reads otherwise
than it runs) are findings here already.
"""

from __future__ import annotations

import itertools
import re
from typing import NamedTuple

from appliance.policy.hcl.diagnostics import Report, Span

MAX_BYTES = 2**20  # of a policy file
MAX_TOKENS = 100_000

NEWLINE, NAME, STRING, NUMBER, MARK, BROKEN, END = "newline", "name", "string", "number", "mark", "broken", "end"


class Token(NamedTuple):
    """One token; `value` is the decoded text of a string, the text itself of all others."""

    kind: str
    value: str
    start: int
    end: int

    @property
    def span(self) -> Span:
        """Where the token stands."""
        return Span(self.start, self.end)


_SPACE = re.compile(r"[ \t]+")
_LINE_COMMENT = re.compile(r"(?:#|//)[^\n]*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_NUMBERLIKE = re.compile(r"-?[0-9][0-9A-Za-z_.]*(?:(?<=[eE])[+-][0-9A-Za-z_.]*)?")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_PLAIN = re.compile(r'[^"\\\n$%]+')
_HEREDOC = re.compile(r"<<(-?)([A-Za-z_][A-Za-z0-9_-]*)[ \t]*\n")
_HEX = {"u": re.compile(r"[0-9a-fA-F]{4}"), "U": re.compile(r"[0-9a-fA-F]{8}")}
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\"}
# C0 controls but tab and newline, DEL, C1 controls, bidirectional overrides and isolates, line separators, BOM
_FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
_FORBIDDEN_RUN = re.compile(_FORBIDDEN.pattern + "+")


class Lexer:
    """Cuts a text into tokens and reports what cannot be one."""

    def __init__(self, text: str, report: Report) -> None:
        self.text = text
        self.report = report
        self.at = 0
        self.tokens: list[Token] = []
        self._hopeless = 0  # up to here no template is closed: not to be searched again

    def run(self) -> list[Token]:
        """Return all tokens, the last of kind `END`."""
        for match in itertools.islice(_FORBIDDEN.finditer(self.text), 5):
            self.report.error(
                "character", f"the control character U+{ord(match[0]):04X} stands here", Span(*match.span()),
                detail="printable characters, tabs and line ends", fix="delete it")
        while self.at < len(self.text) and not self.report.full:
            if len(self.tokens) >= MAX_TOKENS:
                self.report.error("too-large", f"the policy has more than {MAX_TOKENS} words and marks",
                                  Span(self.at, self.at + 1), fix="make it shorter")
                break
            self._next()
        self.tokens.append(Token(END, "", self.at, self.at))
        return self.tokens

    def _push(self, kind: str, value: str, end: int) -> None:
        self.tokens.append(Token(kind, value, self.at, end))
        self.at = end

    def _next(self) -> None:
        """Take one token, or skip what is none."""
        text, at = self.text, self.at
        char = text[at]
        if char == "\n":
            self._push(NEWLINE, char, at + 1)
        elif skip := _SPACE.match(text, at) or _LINE_COMMENT.match(text, at):
            self.at = skip.end()
        elif text.startswith("/*", at):
            self._block_comment()
        elif char == '"':
            self._string()
        elif match := _NAME.match(text, at):
            self._push(NAME, match[0], match.end())
        elif match := _NUMBERLIKE.match(text, at):
            self._number(match)
        elif match := _HEREDOC.match(text, at):
            self._heredoc(match)
        elif text[at:at + 2] in ("==", "=>", "!=", "<=", ">=", "&&", "||"):
            self._push(MARK, text[at:at + 2], at + 2)
        elif text.startswith("...", at):
            self._push(MARK, "...", at + 3)
        elif skip := _FORBIDDEN_RUN.match(text, at):
            self.at = skip.end()  # reported already
        else:
            self._push(MARK, char, at + 1)

    def _block_comment(self) -> None:
        end = self.text.find("*/", self.at + 2)
        if end < 0:
            self.report.error("syntax", "this comment is never closed", Span(self.at, self.at + 2), fix="add */")
            end = len(self.text)
        self.at = min(len(self.text), end + 2)

    def _number(self, match: re.Match[str]) -> None:
        word = match[0]
        if _NUMBER.fullmatch(word) and len(word) <= 40:
            self._push(NUMBER, word, match.end())
            return
        if _NUMBER.fullmatch(word):
            self.report.error("syntax", f"{word[:40]}... is not a number of at most 40 characters", Span(*match.span()),
                              fix="write fewer digits")
            self._push(BROKEN, word, match.end())
            return
        fix = f'sizes and durations stand in quotes: write "{word}"' if re.fullmatch(r"[0-9]+[A-Za-z]+", word) else (
            "write decimal digits, without leading zeros, underscores or prefixes; texts stand in quotes")
        self.report.error("syntax", f"{word[:40]} is not a number", Span(*match.span()), fix=fix)
        self._push(BROKEN, word, match.end())

    def _string(self) -> None:
        """Take a quoted string; a template or an open end is reported, and the token is broken."""
        text, at, parts, broken = self.text, self.at + 1, list[str](), False
        while not self.report.full:
            if match := _PLAIN.match(text, at):
                parts.append(match[0])
                at = match.end()
            char = text[at:at + 1]
            if char == '"':
                break
            if char in ("", "\n"):
                self.report.error("syntax", "this string is not closed on its line", Span(self.at, at),
                                  fix='add the closing quote; a line end inside of a string is written \\n')
                self._push(BROKEN, "", at)
                return
            if char == "\\":
                value, at = self._escape(at)
                broken |= value is None
                parts.append(value or "")
            elif text[at:at + 3] in ("$${", "%%{"):
                parts.append(text[at + 1:at + 3])
                at += 3
            elif text[at:at + 2] in ("${", "%{"):
                at, broken = self._template(at), True
            else:
                parts.append(char)
                at += 1
        self._push(BROKEN if broken else STRING, "".join(parts), at + 1)

    def _escape(self, at: int) -> tuple[str | None, int]:
        """Decode the escape at `at`; return its text, or None after a report, and what follows it."""
        letter = self.text[at + 1:at + 2]
        if letter in _ESCAPES:
            return _ESCAPES[letter], at + 2
        if letter in _HEX and (match := _HEX[letter].match(self.text, at + 2)):
            code = int(match[0], 16)
            if code <= 0x10FFFF and not 0xD800 <= code < 0xE000 and code != 0:
                return chr(code), match.end()
        end = at + 1 if letter in ("\n", "") else at + 2
        self.report.error("syntax", f"\\{letter if letter.isprintable() else ''} is not an escape in a string",
                          Span(at, end), detail='\\n, \\r, \\t, \\", \\\\, \\uNNNN, \\UNNNNNNNN (no surrogates)',
                          fix="write a backslash itself as \\\\" + (f": \\\\{letter}" if letter.isalnum() else ""))
        return None, end

    def _template(self, at: int) -> int:
        """Report a template sequence and return where it ends: its closing brace, or the end of the line."""
        opening = self.text[at:at + 2]
        depth, quoted, end = 0, False, at
        stop = self.text.find("\n", at)
        stop = len(self.text) if stop < 0 else stop
        while end < stop and at >= self._hopeless:
            char = self.text[end]
            if char == '"':
                quoted = not quoted
            elif char == "{" and not quoted:
                depth += 1
            elif char == "}" and not quoted:
                depth -= 1
                if depth == 0:
                    end += 1
                    break
            end += 1
        if depth or at < self._hopeless:  # never closed: take two characters, and let the string end where it would
            self._hopeless, end = max(stop, self._hopeless), at + 2
        self.report.error(
            "expression", f"a string with {opening} in it is a template, which has to be computed", Span(at, end),
            detail="a policy is data: every value stands in the file as it is",
            fix=f"write the value itself; for a literal {opening} write {opening[0]}{opening}")
        return end

    def _heredoc(self, match: re.Match[str]) -> None:
        """Take a heredoc: the lines up to one that holds the marker alone; no escapes, no templates."""
        lines, at, found = list[str](), match.end(), False
        while at < len(self.text) and not found:
            stop = self.text.find("\n", at)
            stop = len(self.text) if stop < 0 else stop
            line = self.text[at:stop]
            found = line.strip(" \t") == match[2]
            if not found:
                lines.append(line)
                at = min(len(self.text), stop + 1)
            else:
                at = stop
        if not found:
            self.report.error("syntax", f"this text has no end: no line holds {match[2]} alone",
                              Span(self.at, match.end() - 1), fix=f"add a line with {match[2]} below the text")
            self._push(BROKEN, "", len(self.text))
            return
        body = "".join(line + "\n" for line in (_dedent(lines) if match[1] else lines))
        template = re.search(r"(?<![$%])[$%]\{", body)
        if template:
            self.report.error(
                "expression", f"a text with {template[0]} in it is a template, which has to be computed",
                Span(self.at, match.end() - 1), detail="a policy is data: every value stands in the file as it is",
                fix=f"for a literal {template[0]} write {template[0][0]}{template[0]}")
        value = body.replace("$${", "${").replace("%%{", "%{")
        self._push(BROKEN if template else STRING, value, at)


def _dedent(lines: list[str]) -> list[str]:
    """Take from each line the indentation that all lines with text share."""
    indents = [len(line) - len(line.lstrip(" \t")) for line in lines if line.strip(" \t")]
    cut = min(indents, default=0)
    return [line[cut:] if line.strip(" \t") else "" for line in lines]
