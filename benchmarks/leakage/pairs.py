"""The pairs: two kinds of request that differ in one thing, one row each.

Both kinds of a pair have the same size in bytes: spaces end the JSON text. `prepare` says what has
to be done before the trial, such as a text that was asked before or a neighbour who asks.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

BODY_BYTES = 4096
SHORT, LONG = 10, 30  # tokens of answers
NEIGHBOURS = 3  # requests of a busy neighbour
_WORDS = ("river", "stone", "market", "window", "paper", "garden", "mountain", "bottle", "letter", "winter", "summer",
          "kitchen", "engine", "silver", "bridge", "pocket", "island", "doctor", "forest", "candle", "harbour")
_TOPICS = (
    ("How is a broken arm treated?", "What are signs of diabetes?", "Which drugs lower a fever?",
     "How does a heart attack feel?", "What helps against migraine?"),
    ("How is a bread dough kneaded?", "What goes into an apple pie?", "Which cheese suits a salad?",
     "How long does rice simmer?", "What makes a cake rise well?"))
_LANGUAGES = (
    ("Tell me about the old town.", "What will the weather be like?", "Where does the train go to?",
     "Describe your favourite animal."),
    ("Erzähle mir von der Altstadt.", "Wie wird morgen das Wetter?", "Wohin fährt der nächste Zug?",
     "Beschreibe dein Lieblingstier."))
_TOOL = {"type": "function", "function": {"name": "look_up", "description": "Look something up.", "parameters": {
    "type": "object", "properties": {"word": {"type": "string", "maxLength": 12}}, "required": ["word"],
    "additionalProperties": False}}}
_SCHEMA = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": {
    "type": "object", "properties": {"name": {"type": "string", "maxLength": 24}, "count": {"type": "integer"}},
    "required": ["name", "count"], "additionalProperties": False}}}


def body(members: Mapping[str, Any]) -> bytes:
    """Return a chat's body of `BODY_BYTES`. ValueError if it is longer."""
    text = json.dumps(members).encode()
    if len(text) > BODY_BYTES:
        raise ValueError(f"a body of {len(text)} bytes, at most {BODY_BYTES}")
    return text.ljust(BODY_BYTES)


def _said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def _words(draw: random.Random, count: int) -> str:
    return " ".join(draw.choice(_WORDS) for _ in range(count))


def _exact(tokens: int) -> dict[str, Any]:
    """Members by which an answer has exactly so many tokens."""
    return {"max_tokens": tokens, "ignore_eos": True}


@dataclass(frozen=True)
class Asked:
    """The requests of a trial. `before`: a body that the same tenant asks first. `elsewhere`: a
    body that another tenant asks first. `neighbours`: bodies that another tenant asks at the same
    time."""

    body: bytes
    before: bytes | None = None
    elsewhere: bytes | None = None
    neighbours: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Maker:
    """Makes requests for a model; `members` go into each, such as `stream`."""

    model: str
    draw: random.Random
    members: Mapping[str, Any] = field(default_factory=dict)

    def chat(self, text: str, **members: Any) -> bytes:
        """Return a chat's body."""
        return body({"model": self.model, "messages": _said(text), "temperature": 0.8, "stream": True,
                     "seed": self.draw.randrange(1 << 31), **members, **self.members})


def _length(make: Maker, secret: bool) -> Asked:
    return Asked(make.chat(f"Write about {_words(make.draw, 4)}.", **_exact(LONG if secret else SHORT)))


def _topic(make: Maker, secret: bool) -> Asked:
    return Asked(make.chat(make.draw.choice(_TOPICS[secret]), **_exact(LONG)))


def _language(make: Maker, secret: bool) -> Asked:
    return Asked(make.chat(make.draw.choice(_LANGUAGES[secret]), **_exact(LONG)))


def _cached(make: Maker, secret: bool) -> Asked:
    text, other = (f"Continue: {_words(make.draw, 100)}" for _ in range(2))
    first = make.chat(text if secret else other, **_exact(1))
    return Asked(make.chat(text, **_exact(SHORT)), before=first)


def _same(make: Maker, _: bool) -> Asked:
    return _cached(make, False)


def _foreign(make: Maker, secret: bool) -> Asked:
    cached = _cached(make, secret)
    return Asked(cached.body, elsewhere=cached.before)


def _refused(make: Maker, secret: bool) -> Asked:
    wrong = {"temperature": -1} if make.draw.random() < 0.5 else {"model": "absent"}
    return Asked(make.chat(f"Write about {_words(make.draw, 4)}.", **_exact(LONG), **(wrong if secret else {})))


def _repetitive(make: Maker, secret: bool) -> Asked:
    words = make.draw.sample(_WORDS, 6) * 10
    if not secret:
        make.draw.shuffle(words)
    return Asked(make.chat(f"Go on: {' '.join(words)}", **_exact(LONG), temperature=0.0))


def _tool(make: Maker, secret: bool) -> Asked:
    choice: Any = {"type": "function", "function": {"name": "look_up"}} if secret else "auto"
    return Asked(make.chat(f"Look up {_words(make.draw, 1)}.", tools=[_TOOL], tool_choice=choice, max_tokens=LONG))


def _schema(make: Maker, secret: bool) -> Asked:
    return Asked(make.chat(f"Count {_words(make.draw, 2)}.", max_tokens=LONG,
                           **({"response_format": _SCHEMA} if secret else {})))


def _neighbour(make: Maker, secret: bool) -> Asked:
    others = [make.chat(f"Write about {_words(make.draw, 40)}.", **_exact(2 * LONG)) for _ in range(NEIGHBOURS)]
    return Asked(make.chat(f"Write about {_words(make.draw, 4)}.", **_exact(LONG)),
                 neighbours=tuple(others) if secret else ())


PAIRS: dict[str, Callable[[Maker, bool], Asked]] = {
    "length": _length,  # an answer of 10 tokens, or of 30
    "topic": _topic,  # medicine, or cooking
    "language": _language,  # English, or German
    "cached": _cached,  # a text that was not asked before, or one that was
    "same": _same,  # the first of these in both kinds: any difference is chance
    "foreign": _foreign,  # a text that another tenant did not ask before, or did
    "refused": _refused,  # answered, or refused
    "repetitive": _repetitive,  # the same words in any order, or in one order again and again
    "tool": _tool,  # a tool that may be called, or one that must be
    "schema": _schema,  # free text, or a constrained answer
    "neighbour": _neighbour,  # an idle neighbour, or a busy one
}

SHOWN = {
    ("refused", "receipts"),  # a refusal has none: there is no answer to vouch for
    ("neighbour", "log"),  # each request has a record that names its tenant
}
"""Pairs that an observer tells apart by design."""
