"""A text to tokens as `hcl/tokens` makes them, past each of its mistakes.

Names beyond ASCII are taken whole, so that `literals` can refuse them by name. Characters that look
like blanks are reported for what they are, and passed over.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field

from lark import Token
from lark.lexer import TextSlice

from appliance.policy.explaining.report import FullReport
from appliance.policy.hcl import tokens
from appliance.policy.hcl.diagnostics import Span
from appliance.policy.hcl.grammar import Language
from appliance.policy.hcl.tokens import (
    ALL_ESCAPES,
    ESCAPE,
    ESCAPES,
    FORBIDDEN,
    HEREDOC,
    MAX_DIGITS,
    MAX_TOKENS,
    NEWLINE,
    NUMBER,
    NUMBERLIKE,
    PLAIN,
    TEMPLATE,
    dedent,
    is_name,
)

STRAY = "STRAY"  # a character that no terminal takes
_NAME = re.compile(r"[^\x00-\x2c./:-@\[-^`{-\x7f\s]{1,200}")  # a name, or more: see `is_name`
_ALMOST_HEREDOC = re.compile(r"<<-?[^\S\n]*+[\"']?([^\x00-\x2c./:-@\[-^`{-\x7f\s]++)[^\n]*+\n")
_SECOND_HALF = re.compile(r"\\u([dD][c-fC-F][0-9a-fA-F]{2})")  # of a character that JSON writes as two escapes


@dataclass
class Marks:
    """The places where the tree must not be believed, by their beginning."""

    broken: set[int] = field(default_factory=set)  # values that are reported already
    absent: set[int] = field(default_factory=set)  # values of an object that do not stand there
    headless: set[int] = field(default_factory=set)  # names with neither `=` nor `{`
    torn: set[int] = field(default_factory=set)  # braces that the file's end closes: what follows in them is not known
    lost_from: int | None = None  # where a text or comment begins that is never closed, and takes all the rest


class LenientLexer(tokens.Lexer):
    """Reads one text, past its mistakes."""

    def __init__(self, grammar: Language, report: FullReport, marks: Marks) -> None:
        super().__init__(grammar, report.text)
        self.report = report
        self.marks = marks
        self._hopeless = 0  # up to here no template is closed: not to be searched again
        self._ascii = self.text.isascii()
        self._odd_blanks = 0

    def run(self) -> list[Token] | None:  # type: ignore[override]
        """Return the tokens; None, after a report, for a text of too many."""
        for match in itertools.islice(FORBIDDEN.finditer(self.text), 5):
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

    def _next(self) -> None:
        """Take one token, or skip what is none."""
        if self.text.startswith("<<", self.at) and self._heredoc_or_almost():
            return
        if not self._ascii and self._name_beyond_ascii():
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
                number := NUMBERLIKE.match(self.text, self.at)):
            self._number(number[0])
        elif taken.type == NEWLINE:
            self._newline(taken)
        elif self.text.startswith("/*", self.at):  # no terminal took it as a comment
            self.report.error("syntax", "this comment is never closed", Span(self.at, self.at + 2), fix="add */")
            self.marks.lost_from = self.at
            self.at = len(self.text)
        else:
            self.at += len(taken) - len(taken.lstrip())  # `=` and `:` come with the blanks before them
            self._push(taken.type, taken, self.at + len(taken.lstrip()))

    def _name_beyond_ascii(self) -> bool:
        """Take a name with a letter beyond ASCII, where one begins."""
        name = _NAME.match(self.text, self.at) if self.text[self.at].isidentifier() else None
        if name is None or name[0].isascii() or not is_name(name[0]):
            return False
        self._push("NAME", name[0], name.end())
        return True

    def _stray(self) -> None:
        """Take a character that begins nothing; one that is forbidden is reported already, and one
        that is not seen is reported for what it is."""
        char = self.text[self.at]
        if FORBIDDEN.match(char):
            self.at += 1
        elif char.isprintable():
            self._push(STRAY, char, self.at + 1)
        else:
            self._odd_blanks += 1
            if self._odd_blanks <= 5:
                kind, fix = ("blank", "write a plain space") if char.isspace() else ("invisible character", "delete it")
                self.report.error("character", f"the {kind} U+{ord(char):04X} stands outside of a text",
                                  Span(self.at, self.at + 1), detail="spaces, tabs and line ends", fix=fix)
            self.at += 1

    def _number(self, word: str) -> None:
        """Take a number, with the letters and points behind it."""
        where = Span(self.at, self.at + len(word))
        if not NUMBER.fullmatch(word):
            self.report.error("syntax", f"{word[:MAX_DIGITS]} is not a number", where, fix=_instead_of(word))
            self.marks.broken.add(self.at)
        elif len(word) > MAX_DIGITS:
            self.report.error("syntax", f"{word[:MAX_DIGITS]}... has {len(word)} characters, so it is not a number of "
                              f"at most {MAX_DIGITS}", where, fix="write fewer digits")
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
                text = self._piece(taken)
                whole &= text is not None
                parts.append(text or "")
                self.at += len(taken)
            else:
                whole, self.at = False, self._behind_template(line.end)
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
        self._wrong_escape("\\", Span(self.at, self.at + 1))
        self.at += 1
        return False

    def _piece(self, taken: Token) -> str | None:
        """Return a piece of a string without its escapes, or None after a report."""
        wrong = list[int]()  # where the escapes stand that are reported; a pair is reported once

        def character(match: re.Match[str]) -> str:
            code = int(match[1] or match[2] or "0", 16)
            if match[3] in ESCAPES:
                return ESCAPES[match[3]]
            if 0 < code <= 0x10FFFF and not 0xD800 <= code < 0xE000:
                return chr(code)
            start = self.at + match.start()
            if not (wrong and wrong[-1] == start):
                second = _SECOND_HALF.match(taken, match.end()) if 0xD800 <= code < 0xDC00 else None
                wrong.append(start if second is None else self.at + second.start())
                end = self.at + match.end() if second is None else self.at + second.end()
                self._wrong_escape(taken[match.start():end - self.at], Span(start, end))
            return ""

        text = ESCAPE.sub(character, taken) if "\\" in taken else str(taken)
        return None if wrong else text

    def _wrong_escape(self, escape: str, where: Span) -> None:
        """Report a backslash and what follows it, by what is wrong with it."""
        found, fix = _wrong_with(escape)
        self.report.error("syntax", found, where, detail=ALL_ESCAPES, fix=fix)

    def _behind_template(self, stop: int) -> int:
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
            detail=PLAIN,
            fix=f"write the value itself; for a literal {opening} write {opening[0]}{opening}")
        return end

    def _heredoc_or_almost(self) -> bool:
        """Take a heredoc; or one whose first line is wrong, after a report, if it has an end."""
        if (right := HEREDOC.match(self.text, self.at)) and is_name(right[2]):
            self._heredoc(right)
            return True
        almost = _ALMOST_HEREDOC.match(self.text, self.at)
        last = None if almost is None else self.line_with(almost[1], almost.end())
        if almost is None or last is None:
            return False
        name = almost[1] if is_name(almost[1]) else "END"
        self.report.error("syntax", "the line that begins a text of several lines ends with << and a name",
                          Span(self.at, almost.end() - 1),
                          detail="<<NAME or <<-NAME, without blanks, quotes or comments",
                          fix=f"write <<{name}" + ("" if name == almost[1] else f", and {name} below the text"))
        self.marks.broken.add(self.at)
        self._push("HEREDOC_TEMPLATE", "", self.text.index("\n", last))
        return True

    def _heredoc(self, match: re.Match[str]) -> None:
        """Take a heredoc: the lines up to one that holds the marker alone; no escapes, no
        templates."""
        start, opening = self.at, Span(self.at, match.end() - 1)
        last = self.line_with(match[2], match.end())
        if last is None:
            self._no_end(match[2], match.end(), opening)
        body = self.text[match.end():last] if last is not None else ""
        if template := TEMPLATE.search(body):
            self.report.error(
                "expression", f"a text with {template[0]} in it is a template, which has to be computed", opening,
                detail=PLAIN,
                fix=f"for a literal {template[0]} write {template[0][0]}{template[0]}")
        if template or last is None:
            self.marks.broken.add(start)
        value = (dedent(body) if match[1] else body).replace("$${", "${").replace("%%{", "%{")
        self._push("HEREDOC_TEMPLATE", value,
                   self.text.index("\n", last) if last is not None else len(self.text) - 1)

    def _no_end(self, marker: str, at: int, opening: Span) -> None:
        """Report a heredoc whose marker is on no line alone, so that it takes the file's rest."""
        self.marks.lost_from = opening.start
        near = self.text.find(marker, at)
        line, _ = self.report.text.line_column(near) if near >= 0 else (0, 0)
        self.report.error("syntax", f"this text has no end: no line holds {marker} alone", opening,
                          fix=f"line {line} holds {marker} and more: write {marker} alone there" if line else
                          f"add a line with {marker} below the text")


def _instead_of(word: str) -> str:
    """Say what to write for a word that begins like a number."""
    if re.fullmatch(r"-?0[0-9]+", word):
        return f"write {int(word)}: leading zeros are not allowed"
    if re.fullmatch(r"-?[0-9.]+[eE][+-]?", word):
        return "write digits behind the e, such as 1e3"
    if re.fullmatch(r"[0-9]+[A-Za-z]+", word):
        return f'sizes and durations stand in quotes: write "{word}"'
    return "write decimal digits, without leading zeros, underscores or prefixes; texts stand in quotes"


def _wrong_with(escape: str) -> tuple[str, str]:
    """Say what is wrong with a backslash and what follows it, and what to write."""
    letter, digits = escape[1:2], escape[2:]
    if letter in ("u", "U") and not digits:
        return f"\\{letter} stands without its {4 if letter == 'u' else 8} hexadecimal digits", (
            "write \\uNNNN or \\UNNNNNNNN; a backslash itself is \\\\")
    if letter in ("u", "U"):
        code = int(digits[:8], 16) if "\\" not in digits else int(digits[:4], 16)
        if code == 0:
            return f"{escape} is the escape of NUL, which no text may hold", "leave it out"
        if code > 0x10FFFF:
            return f"{escape} is beyond the last character, U+10FFFF", "write the character itself"
        if "\\" in digits:
            whole = 0x10000 + ((code - 0xD800) << 10) + int(digits[-4:], 16) - 0xDC00
            return f"{escape} is one character as two surrogates", f"write \\U{whole:08X}"
        return f"{escape} is a surrogate: half of a character", (
            "write the character itself, or \\U and its eight digits")
    shown = letter if letter.isprintable() else ""
    return f"\\{shown} is not an escape in a string", (
        "write a backslash itself as \\\\" + (f": \\\\{letter}" if letter.isalnum() else ""))
