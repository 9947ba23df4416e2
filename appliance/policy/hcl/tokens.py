"""A text to the tokens of python-hcl2's grammar, within bounds.

Lark's lexer applies the grammar's terminals: one set of them outside of strings, one inside. Text
that a policy refuses in every place is refused here: templates, numbers in other notations, control
characters, bidirectional overrides.

Four things differ from python-hcl2's own lexing, each to read what HashiCorp's scanner reads, in
linear time:

- A heredoc is cut at the line of its marker. The grammar's terminal takes quadratic time over blank
  lines, refuses blanks behind the marker, takes the line end with it, and knows ASCII markers only.
- `$${` and `%%{` are three characters. The grammar's terminals run on to the next `}`, over a
  closing quote.
- A comment between `/*` and `*/` is left out. The grammar takes it for a line end.
- A minus before a single digit belongs to the number, as it does before more of them.

Escapes are decoded here.
"""

from __future__ import annotations

import bisect
import functools
import re
from collections.abc import Iterator

from lark import Token
from lark.lexer import BasicLexer, TextSlice

from appliance.policy.hcl.diagnostics import InvalidPolicyError, SourceText, Span
from appliance.policy.hcl.grammar import Language

MAX_TOKENS = 40_000  # a string counts once; so many are read in less than a second
MAX_DIGITS = 40  # characters of a number

NEWLINE = "NL_OR_COMMENT"
NAMES = frozenset(["NAME", "IF", "IN", "FOR", "FOR_EACH", "ELSE", "ENDIF", "ENDFOR", "NULL", "TRUE", "FALSE"])
NUMBERLIKE = re.compile(r"-?[0-9][0-9A-Za-z_.]*(?:(?<=[eE])[+-][0-9A-Za-z_.]*)?")
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
HEREDOC = re.compile(r"<<(-?)([^\x00-\x2c./:-@\[-^`{-\x7f\s]+)[ \t]*\n")
TEMPLATE = re.compile(r"(?<![$%])[$%]\{")
ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))")
ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\"}
ALL_ESCAPES = '\\n, \\r, \\t, \\", \\\\, \\uNNNN, \\UNNNNNNNN (no surrogates, no NUL) are the escapes'
# C0 controls but tab and newline, DEL, C1 controls, bidirectional overrides and isolates, line
# separators, BOM
FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
PLAIN = "a policy is data: every value stands in the file as it is"


def token(kind: str, value: str, start: int, end: int) -> Token:
    """Return a token by the place of its characters."""
    return Token(kind, value, start_pos=start, end_pos=end)


def span(of: Token) -> Span:
    """Return where a token stands."""
    return Span(of.start_pos or 0, of.end_pos or 0)


class Lexer:
    """Reads one text. Raises InvalidPolicyError at its first mistake."""

    def __init__(self, grammar: Language, source: SourceText) -> None:
        self.grammar = grammar
        self.source = source
        self.text = source.text + "\n"  # every line has an end
        self.whole = TextSlice.cast_from(self.text)
        self.line = TextSlice(self.text, 0, 0)  # up to the end of the line of the last string
        self.at = 0
        self.tokens: list[Token] = []

    def run(self) -> Iterator[Token]:
        """Yield the tokens as they are read: nothing behind the first mistake, the parser's too, is
        looked at."""
        if stray := FORBIDDEN.search(self.text):
            raise self.source.refusal("character", f"the control character U+{ord(stray[0]):04X} stands here",
                                      Span(*stray.span()), "printable characters, tabs and line ends")
        for _ in range(MAX_TOKENS):
            if self.at >= len(self.text):
                return
            known = len(self.tokens)
            self._next()
            yield from self.tokens[known:]
        if self.text[self.at:].strip():
            raise self._refusal(1, f"the policy has more than {MAX_TOKENS} words and marks", code="too-large")

    def _refusal(self, length: int, summary: str, detail: str = "", code: str = "syntax") -> InvalidPolicyError:
        return self.source.refusal(code, summary, Span(self.at, self.at + length), detail)

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
        heredoc = HEREDOC.match(self.text, self.at)
        if heredoc and is_name(heredoc[2]):
            self._heredoc(heredoc)
            return
        taken = self._match(self.grammar.code, self.whole)
        if taken is None:
            char = self.text[self.at]
            raise self._refusal(1, f"{char!r} stands outside of a text")
        if taken.type in self.grammar.code.ignore_types:
            self.at += len(taken)
            self._next()
        elif taken.type == "DBLQUOTE":
            self._string()
        elif taken.type in ("INT_LITERAL", "FLOAT_LITERAL", "MINUS") and (
                number := NUMBERLIKE.match(self.text, self.at)):
            self._number(number[0])
        elif taken.type == NEWLINE:
            self._newline(taken)
        elif self.text.startswith("/*", self.at):  # no terminal took it as a comment
            raise self._refusal(2, "this comment is never closed")
        else:
            self.at += len(taken) - len(taken.lstrip())  # `=` and `:` come with the blanks before them
            self._push(taken.type, taken, self.at + len(taken.lstrip()))

    def _newline(self, taken: Token) -> None:
        """Take a line end; of several, one after the other, the first."""
        end = self.at + len(taken)
        if not taken.startswith("/*") and not (self.tokens and self.tokens[-1].type == NEWLINE):
            self.at += taken.index("\n")
            self._push(NEWLINE, "\n", self.at + 1)
        self.at = end

    def _number(self, word: str) -> None:
        """Take a number, with the letters and points behind it."""
        if not NUMBER.fullmatch(word) or len(word) > MAX_DIGITS:
            raise self._refusal(len(word), f"this is not a number of at most {MAX_DIGITS} digits",
                         "decimal digits, without leading zeros, underscores or prefixes; sizes stand in quotes")
        self._push("FLOAT_LITERAL" if set(word) & set(".eE") else "INT_LITERAL", word, self.at + len(word))

    def _string(self) -> None:
        """Take a quoted string."""
        start, parts = self.at, list[str]()
        if self.at >= self.line.end:
            self.line = TextSlice(self.text, 0, self.text.index("\n", self.at))
        line = self.line
        self.at += 1
        while self.at < line.end:
            taken = self._match(self.grammar.string, line)
            if taken is not None and taken.type == "DBLQUOTE":
                break
            if taken is not None and taken.type == "STRING_CHARS":
                parts.append(self._decoded(taken))
                self.at += len(taken)
            elif taken is None and self.text.startswith(("$${", "%%{"), self.at):
                parts.append(self.text[self.at + 1:self.at + 3])
                self.at += 3
            elif taken is None:
                raise self._refusal(1, "a backslash ends this line", ALL_ESCAPES)
            else:
                raise self._template(self.text[self.at:self.at + 2])
        end, self.at = self.at + 1, start
        if end > line.end:
            raise self._refusal(line.end - start, "this string is not closed on its line")
        self._push("DBLQUOTE", '"', start + 1)
        if value := "".join(parts):
            self._push("STRING_CHARS", value, max(start + 1, end - 1))
        self._push("DBLQUOTE", '"', end)

    def _decoded(self, taken: Token) -> str:
        """Return a piece of a string without its escapes."""
        def character(match: re.Match[str]) -> str:
            code = int(match[1] or match[2] or "0", 16)
            if match[3] not in ESCAPES and not (0 < code <= 0x10FFFF and not 0xD800 <= code < 0xE000):
                start = self.at + match.start()
                raise self.source.refusal("syntax", f"{match[0]} is not an escape in a string",
                                          Span(start, start + len(match[0])), ALL_ESCAPES)
            return ESCAPES[match[3]] if match[3] else chr(code)

        return ESCAPE.sub(character, taken) if "\\" in taken else str(taken)

    def _template(self, opening: str) -> InvalidPolicyError:
        return self._refusal(2, f"a text with {opening} in it is a template, which has to be computed", PLAIN,
                             "expression")

    @functools.cached_property
    def _lines(self) -> dict[str, list[int]]:
        """Where the lines begin that hold a text and blanks around it, by that text."""
        found: dict[str, list[int]] = {}
        at = 0
        for line in self.text.split("\n"):
            found.setdefault(line.strip(), []).append(at)
            at += len(line) + 1
        return found

    def line_with(self, word: str, at: int) -> int | None:
        """Return where the first line begins, from a place on, that holds nothing but a word."""
        places = self._lines.get(word, [])
        number = bisect.bisect_left(places, at)
        return places[number] if number < len(places) else None

    def _heredoc(self, match: re.Match[str]) -> None:
        """Take a heredoc: the lines up to one that holds the marker alone; no escapes, no
        templates."""
        last = self.line_with(match[2], match.end())
        if last is None:
            raise self._refusal(len(match[0]) - 1, "this text has no end: no line is only its marker")
        body = self.text[match.end():last]
        if template := TEMPLATE.search(body):
            raise self._template(template[0])
        value = (dedent(body) if match[1] else body).replace("$${", "${").replace("%%{", "%{")
        self._push("HEREDOC_TEMPLATE", value, self.text.index("\n", last))


def is_name(word: str) -> bool:
    """Whether a word is a name by HCL: Unicode's letters and digits, and dashes."""
    return word[0] != "-" and word.replace("-", "_").isidentifier()


def dedent(body: str) -> str:
    """Take from each line the indentation that all lines with text share; lines of blanks stay as
    they are."""
    lines = [f"{line}\n" for line in body.split("\n")[:-1]]
    indents = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
    cut = min(indents, default=0)
    return "".join(line[cut:] if line.strip() else line for line in lines)
