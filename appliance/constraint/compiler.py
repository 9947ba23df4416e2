"""Constraints for one model: checked, compiled within limits, ready for answers.

llguidance (MIT, compiled) does the work: an Earley parser over lexemes that are regular expressions
by derivatives, and a walk over the tree of all tokens for each mask. It starts no threads here. Its
messages may hold words of the request, so none of them leaves this module.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from llguidance._lib import LLMatcher, LLParserLimits

from appliance.constraint import gbnf, lark, room, size, vocabulary
from appliance.constraint.schema import languages, looking, rewriter
from appliance.constraint.schema.place import has_no_spelling
from appliance.constraint.spec import Gbnf, JsonObject, JsonSchema, Lark, RegexText, Spec, TextList
from appliance.constraint.vocabulary import TokenTexts
from appliance.constraint.walk import Constraint
from appliance.errors import ConstraintError, EngineError

MOST_CHOICES = 10_000
MOST_CHOICE_CHARACTERS = 1 << 20  # of all of them

LIMITS = {"max_items_in_row": 2000, "initial_lexer_fuel": 1_000_000, "step_lexer_fuel": 50_000,
          "step_max_items": 5000, "max_lexer_states": 50_000, "max_grammar_size": 200_000}
"""llguidance's limits on one compilation (grammar and initial fuel), one mask (the steps') and one lexer. A mask that
costs the most takes some 50 ms on one core, while a pass runs; the largest lexer some 50 MB."""


class Compiler:
    """Constraints for one vocabulary. Safe to use from any thread. How many compilations run at a
    time is the caller's to bound."""

    def __init__(self, words: TokenTexts) -> None:
        self._words, self._loading = words, threading.Lock()
        self._loaded: tuple[Any, dict[str, int]] | None = None

    def prepare(self) -> None:
        """Make the vocabulary ready, before anybody waits: compiled code keeps the interpreter for
        half a second, for 150,000 tokens. Where it cannot be done, each constraint is refused, and
        says why."""
        with contextlib.suppress(ConstraintError, MemoryError):
            if self._has_room():
                self._vocabulary()

    def _has_room(self) -> bool:
        return room.is_there(room.STEP + (room.TOKEN * self._words.vocab_size if self._loaded is None else 0))

    def compile(self, spec: Spec) -> Constraint:
        """A constraint for answers of this model. It takes up to about a second, without the
        interpreter's lock for the most part: not for an event loop.

        ConstraintError for what would not be enforced to the letter, what is too large, and what no
        text meets. Its code is "constraint-no-room" where memory is too short for any.
        """
        if not self._has_room():
            raise ConstraintError("there is no memory for constraints", code="constraint-no-room",
                                  hint="the policy's memory_budget leaves too little")
        words, controls = self._vocabulary()
        text = grammar(spec, controls)
        matcher = self._matcher(words, text)
        if matcher.is_error() and _ONE_OF in matcher.get_error():
            text = grammar(spec, controls, spell_out=True)
            matcher = self._matcher(words, text)
        if matcher.is_error():
            raise _refusal(matcher.get_error(), spec, controls)
        constraint = Constraint(matcher, self._words.vocab_size, text)
        try:
            constraint.begin().mask()
        except EngineError:
            raise ConstraintError("no text meets the constraint, or finding one costs more than the limits",
                                  hint="make it wider, or simpler") from None
        return constraint

    def again(self, text: str) -> Constraint:
        """A constraint from the grammar that an earlier one was compiled from. ConstraintError."""
        words, _ = self._vocabulary()
        matcher = self._matcher(words, text)
        if matcher.is_error():
            raise _refusal(matcher.get_error())
        return Constraint(matcher, self._words.vocab_size, text)

    @staticmethod
    def _matcher(words: Any, text: str) -> Any:
        return LLMatcher(words, text, log_level=0, limits=LLParserLimits(
            verbose_errors=False, precompute_large_lexemes=False, **LIMITS))

    def _vocabulary(self) -> tuple[Any, dict[str, int]]:
        """Made once: a model whose answers are never constrained does without."""
        with self._loading:
            if self._loaded is None:
                self._loaded = vocabulary.load(self._words), vocabulary.controls(self._words)
            return self._loaded


def grammar(spec: Spec, controls: dict[str, int], *, spell_out: bool = False) -> str:
    """A constraint as llguidance's text for it; `spell_out`: with schemas without `oneOf`.
    ConstraintError where it is refused."""
    match spec:
        case JsonSchema(value):
            schema = rewriter.rewrite(value, spell_out=spell_out)
            if size.is_long(schema):
                return lark.without_forcing(f"start: %json {rewriter.as_text(schema)}")
            return _json(schema)
        case JsonObject():
            return _json({"type": "object"})
        case RegexText(text):
            whole = looking.whole(text, languages.Work()).text
            found = f"start: /{_quoted(whole)}/"
            return lark.without_forcing(found) if size.forces(whole) > size.FORCED else found
        case TextList(texts):
            return _choice(texts)
        case Lark(text):
            return lark.prepare(text, controls, spell_out=spell_out)
        case Gbnf(text):
            return gbnf.to_lark(text)


def _json(written: dict[str, Any]) -> str:
    return '{"grammars":[{"json_schema":' + rewriter.as_text(written) + "}]}"


def _quoted(regex: str) -> str:
    """A pattern between slashes; one that matches the empty text alone has no other form."""
    return regex.replace("/", "\\/")


def _choice(texts: tuple[str, ...]) -> str:
    if not texts or len(texts) > MOST_CHOICES or sum(map(len, texts)) > MOST_CHOICE_CHARACTERS:
        raise ConstraintError(f"a choice of {len(texts)} texts", hint=f"1 to {MOST_CHOICES}, with up to "
                              f"{MOST_CHOICE_CHARACTERS} characters in all")
    if any(map(has_no_spelling, texts)):
        raise ConstraintError("a choice has a text with a control character or half a character",
                              hint="other characters, \\t and \\n")
    return "start: CHOICE\nCHOICE: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in dict.fromkeys(texts))


_ONE_OF = "oneOf constraints are not supported"
_REFUSALS = (
    (_ONE_OF, "oneOf over schemas that may both hold",
     "schemas that exclude each other: by type, or by a required property with different constants; or anyOf"),
    ("circular references with sibling keys", "a reference within itself, with keywords beside it",
     "the keywords within the schema that is referred to"),
    ("not disjoint", "patterns of names that overlap", "patternProperties of which no name matches two"),
    ("Unsatisfiable schema", "no document that it allows", "a schema that something conforms to"),
    ("minProperties", "a count of members that are optional", "required members"),
)


_LIMITS = ("limit", "too large", "too big", "too many", "too complex", "exceed", "fuel")
"""Words of llguidance's messages that say that a grammar is too much, and not that it is wrong."""


def _refusal(message: str, spec: Spec | None = None, controls: Mapping[str, int] = MappingProxyType({}),
             ) -> ConstraintError:
    """Our words for llguidance's reasons. A grammar that it cannot read has a line and a cause; the
    others are limits."""
    for known, what, allowed in _REFUSALS:
        if known in message:
            return ConstraintError(f"the constraint has {what}: that is not enforced to the letter",
                                   hint=f"allowed: {allowed}")
    if isinstance(spec, Lark) and not any(word in message.partition("\n")[0] for word in _LIMITS):
        return _unreadable(message, spec.text, controls)
    return ConstraintError("the constraint cannot be compiled within its limits", code="constraint-too-large",
                           hint="make it smaller: fewer schemas, shorter patterns, smaller repeats")


_FAULTS = (
    ("unknown name", "a name that is not defined"), ("duplicate rule", "a rule that is there twice"),
    ("duplicate token", "a terminal that is there twice"), ("circular reference", "a terminal within itself"),
    ("no start rule", "no rule start"), ("Empty grammar", "no rule"),
    ("lexer error", "something that is no part of a grammar"),
    ("unclosed", "a pattern with a bracket that is not closed"), ("look-around", "a pattern that looks around"),
    ("property not found", "a pattern with a property that Unicode has not"), ("regex", "a pattern that is none"),
    ("range", "a range that is none"), ("priority", "a rule with a priority"),
    ("& is only", "a rule with &, which terminals have: their names are in capital letters"),
    ("in terminals", "a terminal with what rules alone may have"), ("Token range", "a token that the model has not"))
"""What llguidance says of a grammar that it cannot read, and what we say: its words have the request's."""


def _unreadable(message: str, text: str, controls: Mapping[str, int]) -> ConstraintError:
    """A message such as `at 2(8): unknown name: "b"`, with lines of the grammar after it."""
    place, _, cause = message.removeprefix("at ").partition("): ")
    line, _, column = place.partition("(")
    known = line.isdecimal() and column.isdecimal()
    expected = cause.partition("Expected token ")[2].partition(", found ")[0]
    what = f"something else than {expected}" if expected and cause.startswith("Expected token ") else next(
        (ours for theirs, ours in _FAULTS if theirs in message), "something that cannot be read")
    where = f"line {lark.line_of(text, controls, int(line), int(column))}" if known else ""
    return ConstraintError(f"the grammar has {what}{' in ' * known}{where}", path=where,
                           hint="allowed is llguidance's Lark, from the rule start on")
