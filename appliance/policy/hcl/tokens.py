"""A text to the tokens of python-hcl2's grammar, within bounds.

Lark's lexer applies the grammar's terminals: one set of them outside of strings, one inside. Text
that a policy refuses in every place is found here: templates, numbers in other notations, control
characters, bidirectional overrides.

Four things differ from python-hcl2's own lexing, each to read what HashiCorp's scanner reads, in
linear time:

- A heredoc is cut at the line of its marker. The grammar's terminal takes quadratic time over blank
  lines, refuses blanks behind the marker, and takes the line end with it.
- `$${` and `%%{` are three characters. The grammar's terminals run on to the next `}`, over a
  closing quote.
- A comment between `/*` and `*/` is left out. The grammar takes it for a line end.
- A minus before a single digit belongs to the number, as it does before more of them.

Escapes are decoded here, too.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field

from lark import Token
from lark.lexer import BasicLexer, TextSlice

from appliance.policy.hcl.diagnostics import Report, Span
from appliance.policy.hcl.grammar import Grammar

MAX_TOKENS = 40_000  # a string counts once; so many are read in less than a second

NEWLINE = "NL_OR_COMMENT"
STRAY = "STRAY"  # a character that no terminal takes
NAMES = frozenset(["NAME", "IF", "IN", "FOR", "FOR_EACH", "ELSE", "ENDIF", "ENDFOR", "NULL", "TRUE", "FALSE"])

_NUMBERLIKE = re.compile(r"-?[0-9][0-9A-Za-z_.]*(?:(?<=[eE])[+-][0-9A-Za-z_.]*)?")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_HEREDOC = re.compile(r"<<(-?)([A-Za-z_][A-Za-z0-9_-]*)[ \t]*\n")
_WORD_ALONE = re.compile(r"^[ \t]*([A-Za-z_][A-Za-z0-9_-]*)[ \t]*$", re.MULTILINE)
_TEMPLATE = re.compile(r"(?<![$%])[$%]\{")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\"}
# C0 controls but tab and newline, DEL, C1 controls, bidirectional overrides and isolates, line
# separators, BOM
_FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


@dataclass
class Marks:
    """The places where the tree must not be believed, by their beginning."""

    broken: set[int] = field(default_factory=set)  # values that are reported already
    absent: set[int] = field(default_factory=set)  # values of an object that do not stand there
    headless: set[int] = field(default_factory=set)  # names with neither `=` nor `{`


def token(kind: str, value: str, start: int, end: int) -> Token:
    """Return a token by the place of its characters."""
    return Token(kind, value, start_pos=start, end_pos=end)


def span(of: Token) -> Span:
    """Return where a token stands."""
    return Span(of.start_pos or 0, of.end_pos or 0)


class Lexer:
    """Reads one text."""

    def __init__(self, grammar: Grammar, report: Report, marks: Marks) -> None:
        self.grammar = grammar
        self.report = report
        self.marks = marks
        self.text = report.text.text + "\n"  # every line has an end
        self.whole = TextSlice.cast_from(self.text)
        self.line = TextSlice(self.text, 0, 0)  # up to the end of the line of the last string
        self.at = 0
        self.tokens: list[Token] = []
        self._hopeless = 0  # up to here no template is closed: not to be searched again

    def run(self) -> list[Token] | None:
        """Return the tokens; None, after a report, for a text of too many."""
        for match in itertools.islice(_FORBIDDEN.finditer(self.text), 5):
            self.report.error(
                "character", f"the control character U+{ord(match[0]):04X} stands here", Span(*match.span()),
                detail="printable characters, tabs and line ends", fix="delete it")
        for _ in range(MAX_TOKENS):
            if self.at >= len(self.text) or self.report.full:
                return self.tokens
            self._next()
        if not self.text[self.at:].strip():
            return self.tokens
        self.report.error("too-large", f"the policy has more than {MAX_TOKENS} words and marks",
                          Span(self.at, self.at + 1), fix="make it shorter")
        return None

    def _push(self, kind: str, value: str, end: int) -> None:
        self.tokens.append(token(kind, value, self.at, end))
        self.at = end

    def _match(self, lexer: BasicLexer, within: TextSlice[str]) -> Token | None:
        """Return what a terminal takes here, or None."""
        found = lexer.match(within, self.at)
        if found is None:
            return None
        value, kind = found
        taken = token(kind, value, self.at, self.at + len(value))
        keyword = lexer.callback.get(kind)  # Lark's way to tell keywords from names
        return taken if keyword is None else keyword(taken)

    def _next(self) -> None:
        """Take one token, or skip what is none."""
        if heredoc := _HEREDOC.match(self.text, self.at):
            self._heredoc(heredoc)
            return
        taken = self._match(self.grammar.code, self.whole)
        if taken is not None and taken.type in self.grammar.code.ignore_types:
            self.at += len(taken)
            self._next()
        elif taken is None:
            self._stray()
        elif taken.type == "DBLQUOTE":
            self._string()
        elif taken.type in ("INT_LITERAL", "FLOAT_LITERAL", "MINUS") and (
                number := _NUMBERLIKE.match(self.text, self.at)):
            self._number(number[0])
        elif taken.type == NEWLINE:
            self._newline(taken)
        elif self.text.startswith("/*", self.at):  # no terminal took it as a comment
            self.report.error("syntax", "this comment is never closed", Span(self.at, self.at + 2), fix="add */")
            self.at = len(self.text)
        else:
            self.at += len(taken) - len(taken.lstrip())  # `=` and `:` come with the blanks before them
            self._push(taken.type, taken, self.at + len(taken.lstrip()))

    def _stray(self) -> None:
        """Take a character that begins nothing; one that is forbidden is reported already."""
        if _FORBIDDEN.match(self.text, self.at):
            self.at += 1
        else:
            self._push(STRAY, self.text[self.at], self.at + 1)

    def _newline(self, taken: Token) -> None:
        """Take a line end; of several, one after the other, the first."""
        end = self.at + len(taken)
        if not taken.startswith("/*") and not (self.tokens and self.tokens[-1].type == NEWLINE):
            self.at += taken.index("\n")
            self._push(NEWLINE, "\n", self.at + 1)
        self.at = end

    def _number(self, word: str) -> None:
        """Take a number, with the letters and points behind it."""
        where = Span(self.at, self.at + len(word))
        if not _NUMBER.fullmatch(word):
            sized = re.fullmatch(r"[0-9]+[A-Za-z]+", word)
            fix = f'sizes and durations stand in quotes: write "{word}"' if sized else (
                "write decimal digits, without leading zeros, underscores or prefixes; texts stand in quotes")
            self.report.error("syntax", f"{word[:40]} is not a number", where, fix=fix)
            self.marks.broken.add(self.at)
        elif len(word) > 40:
            self.report.error("syntax", f"{word[:40]}... is not a number of at most 40 characters", where,
                              fix="write fewer digits")
            self.marks.broken.add(self.at)
        self._push("FLOAT_LITERAL" if set(word) & set(".eE") else "INT_LITERAL", word, where.end)

    def _string(self) -> None:
        """Take a quoted string; a template or an open end is reported, and the string is broken."""
        start, parts, whole = self.at, list[str](), True
        if self.at >= self.line.end:
            self.line = TextSlice(self.text, 0, self.text.index("\n", self.at))
        line = self.line
        self.at += 1
        while not self.report.full and self.at < line.end:
            taken = self._match(self.grammar.string, line)
            if taken is None:
                whole &= self._escaped(parts)
            elif taken.type == "DBLQUOTE":
                break
            elif taken.type == "STRING_CHARS":
                text = self._decoded(taken)
                whole &= text is not None
                parts.append(text or "")
                self.at += len(taken)
            else:
                whole, self.at = False, self._template(line.end)
        if self.at >= line.end:
            self.report.error("syntax", "this string is not closed on its line", Span(start, self.at),
                              fix='add the closing quote; a line end inside of a string is written \\n')
            whole = False
        end = min(self.at + 1, line.end)
        if not whole:
            self.marks.broken.add(start)
        self.at = start
        self._push("DBLQUOTE", '"', start + 1)
        if value := "".join(parts):
            self._push("STRING_CHARS", value, max(start + 1, end - 1))
        self._push("DBLQUOTE", '"', end)

    def _escaped(self, parts: list[str]) -> bool:
        """Take `$${`, `%%{`, or a backslash that ends its line; return whether it is right."""
        if self.text.startswith(("$${", "%%{"), self.at):
            parts.append(self.text[self.at + 1:self.at + 3])
            self.at += 3
            return True
        self._not_an_escape("", Span(self.at, self.at + 1))
        self.at += 1
        return False

    def _decoded(self, taken: Token) -> str | None:
        """Return a piece of a string without its escapes, or None after a report."""
        wrong = []

        def character(match: re.Match[str]) -> str:
            code = int(match[1] or match[2] or "0", 16)
            if match[3] in _ESCAPES:
                return _ESCAPES[match[3]]
            if 0 < code <= 0x10FFFF and not 0xD800 <= code < 0xE000:
                return chr(code)
            wrong.append(match[0])
            start = self.at + match.start()
            self._not_an_escape(match[0][1], Span(start, start + 2))
            return ""

        text = _ESCAPE.sub(character, taken) if "\\" in taken else str(taken)
        return None if wrong else text

    def _not_an_escape(self, letter: str, where: Span) -> None:
        self.report.error("syntax", f"\\{letter if letter.isprintable() else ''} is not an escape in a string",
                          where, detail='\\n, \\r, \\t, \\", \\\\, \\uNNNN, \\UNNNNNNNN (no surrogates)',
                          fix="write a backslash itself as \\\\" + (f": \\\\{letter}" if letter.isalnum() else ""))

    def _template(self, stop: int) -> int:
        """Report a template and return where it ends: behind its closing brace, or behind its two
        first characters."""
        at, opening = self.at, self.text[self.at:self.at + 2]
        depth, quoted, end = 0, False, at + 2
        if at >= self._hopeless:
            for mark in re.compile(r'["{}]').finditer(self.text, at, stop):
                quoted ^= mark[0] == '"'
                depth += 0 if quoted or mark[0] == '"' else 1 if mark[0] == "{" else -1
                if depth == 0:
                    end = mark.end()
                    break
            else:
                self._hopeless = stop
        self.report.error(
            "expression", f"a string with {opening} in it is a template, which has to be computed", Span(at, end),
            detail="a policy is data: every value stands in the file as it is",
            fix=f"write the value itself; for a literal {opening} write {opening[0]}{opening}")
        return end

    def _heredoc(self, match: re.Match[str]) -> None:
        """Take a heredoc: the lines up to one that holds the marker alone; no escapes, no
        templates."""
        start, opening = self.at, Span(self.at, match.end() - 1)
        last = next((word for word in _WORD_ALONE.finditer(self.text, match.end()) if word[1] == match[2]), None)
        if last is None:
            self.report.error("syntax", f"this text has no end: no line holds {match[2]} alone", opening,
                              fix=f"add a line with {match[2]} below the text")
        body = self.text[match.end():last.start()] if last else ""
        if template := _TEMPLATE.search(body):
            self.report.error(
                "expression", f"a text with {template[0]} in it is a template, which has to be computed", opening,
                detail="a policy is data: every value stands in the file as it is",
                fix=f"for a literal {template[0]} write {template[0][0]}{template[0]}")
        if template or last is None:
            self.marks.broken.add(start)
        value = (_dedent(body) if match[1] else body).replace("$${", "${").replace("%%{", "%{")
        self._push("HEREDOC_TEMPLATE", value, last.end() if last else len(self.text) - 1)


def _dedent(body: str) -> str:
    """Take from each line the indentation that all lines with text share; lines of blanks stay as
    they are."""
    lines = [f"{line}\n" for line in body.split("\n")[:-1]]
    indents = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
    cut = min(indents, default=0)
    return "".join(line[cut:] if line.strip() else line for line in lines)
