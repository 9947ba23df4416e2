"""The tokens of a template, read from front to back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from appliance.errors import TemplateError
from appliance.text.jinja.lexer import Token, error

MAX_DEPTH = 60  # of statements and expressions within each other
CONSTANTS: Mapping[str, object] = {
    "true": True, "True": True, "false": False, "False": False, "none": None, "None": None}
RESERVED = frozenset(["and", "or", "not", "in", "is", "if", "else", "elif", "for"])


class TokenReader:
    """Tokens, and the reader's place: its token, and its depth within statements and brackets."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    @property
    def now(self) -> Token:
        """The present token."""
        return self._tokens[self._at]

    @property
    def following(self) -> Token:
        """The token after the present one."""
        return self._tokens[self._at + 1]

    def skip(self, count: int) -> None:
        """Go on by so many tokens, or back."""
        self._at += count

    def next(self) -> Token:
        """Take the present token; the last one stays."""
        token = self.now
        if token.kind != "eof":
            self._at += 1
        return token

    def at(self, *values: str) -> bool:
        """Whether the present token is one of these signs or words."""
        return self.now.value in values and self.now.kind in ("operator", "name", "end", "begin")

    def take(self, value: str) -> bool:
        """Take a sign or word if it is the present token; whether it was."""
        if self.at(value):
            self._at += 1
            return True
        return False

    def need(self, value: str) -> Token:
        """Take a sign or word. TemplateError for another token."""
        if not self.at(value):
            raise self.unexpected(f"{value!r}")
        return self.next()

    def unexpected(self, expected: str) -> TemplateError:
        """The error for the present token in the place of something else."""
        token = self.now
        shown = "the end of the template" if token.kind == "eof" else "text" if token.kind == "text" else repr(
            token.value[:20])
        return error(f"{shown} found; expected {expected}", token.line)

    def name(self) -> str:
        """Take the name of a variable. TemplateError for another token."""
        if self.now.kind != "name" or self.now.value in RESERVED or self.now.value in CONSTANTS:
            raise self.unexpected("a name")
        return self.next().value

    def name_after_dot(self) -> str:
        """Take the name of an attribute, or its number. TemplateError for another token."""
        if self.now.kind not in ("name", "int"):
            raise self.unexpected("a name")
        return self.next().value

    def deeper(self) -> None:
        """Enter a statement or bracket. TemplateError where that is too deep."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise error(f"more than {MAX_DEPTH} statements or brackets within each other", self.now.line)

    def shallower(self) -> None:
        """Leave it."""
        self._depth -= 1
