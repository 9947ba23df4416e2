"""The hostile cases, one row each: hostile clients, and ordinary clients of the same load."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.siege import bombs, clients, lists
from benchmarks.siege.bombs import Maker, Parameters
from benchmarks.siege.clients import ADMIN, HOSTILE, Client

ANSWERS, LONGEST = 32, 1024  # of one request; tokens of each
CROWD, SLOW = 64, 64  # tenants that queue, connections that drip


@dataclass(frozen=True)
class Row:
    """A case. `ordinary`: clients of one tenant whose load is the same, as many where
    `ordinary_clients` says nothing else. None: the clients ask for nothing but what all do, and
    their own first tokens are compared with."""

    hostile: Client
    clients: int = 8
    ordinary: Client | None = None
    ordinary_clients: int | None = None


def small(number: int) -> Parameters:
    """A constraint as many ask for."""
    return {"guided_choice": [f"yes {number}", "no"]}


def words(number: int) -> Parameters:
    """A constraint that an answer of many tokens has, and that costs little."""
    return {"regex": f"[a-z ]{{200,400}}{number}"}


def as_long(maker: Maker) -> Maker:
    """The same constraint in a body of the length that a maker's has."""
    return lambda number: {**small(number), "user": "x" * len(json.dumps(maker(number)))}


def _beside_ordinary(makers: Sequence[Maker], clients_: int = 8, **how: Any) -> Row:
    """Bombs beside ordinary bodies of their lengths."""
    return Row(clients.sends(makers, **how), clients_, clients.sends(list(map(as_long, makers)), **how))


CASES: Mapping[str, Row] = {
    "grammars of 24 KB": _beside_ordinary(bombs.grammars(bombs.SMALL)),
    "grammars of 520 KB": _beside_ordinary(bombs.grammars(bombs.LARGE)),
    "literals of 200 KB, 10,000 words": _beside_ordinary(bombs.LITERALS),
    "the same, and clients leave": _beside_ordinary(bombs.LITERALS, 16, seconds=0.3),
    "repeats in GBNF": _beside_ordinary(bombs.REPEATS),
    "JSON schemas": _beside_ordinary(bombs.SCHEMAS),
    "patterns": _beside_ordinary(bombs.PATTERNS),
    "choices": _beside_ordinary(bombs.CHOICES),
    "masks": Row(clients.sends(bombs.MASKS, max_tokens=64), 12, clients.sends([words], max_tokens=64)),
    "tools": Row(clients.chats(bombs.TOOLS), ordinary=clients.sends(list(map(as_long, bombs.TOOLS)))),
    "bodies of 1 MiB": Row(clients.bodies(list(bombs.BODIES.values())),
                           ordinary=clients.sends([lambda number: {**small(number), "user": "x" * bombs.BODY}])),
    "lists of tenants": Row(clients.lists(lists.LISTS, (ADMIN, HOSTILE, "nobody")),
                            ordinary=clients.sends([lambda number: {**small(number), "user": "x" * bombs.BODY}])),
    "chats of many messages": Row(clients.chats(bombs.CHATS),
                                  ordinary=clients.sends(list(map(as_long, bombs.CHATS)))),
    "caches thrashed": Row(clients.caches(new=True), 16, clients.caches(new=False)),
    "32 answers of a request": Row(clients.asks(n=ANSWERS, max_tokens=LONGEST), 1,
                                   clients.asks(max_tokens=LONGEST), ANSWERS),
    "32 prompts of a request": Row(clients.asks(prompt=["Say it."] * ANSWERS, max_tokens=LONGEST), 1,
                                   clients.asks(max_tokens=LONGEST), ANSWERS),
    "pages and session disk filled": Row(clients.prompts(900, new=True), 12, clients.prompts(900, new=False)),
    "slow readers": Row(clients.slow_reader, SLOW, clients.asks(max_tokens=200)),
    "slow writers": Row(clients.slow_writer, SLOW, clients.sends([small])),
    "chunks of a byte": Row(clients.small_chunks, ordinary=clients.looks(0.0)),
    "requests before answers": Row(clients.pipelining, ordinary=clients.looks(0.0)),
    "wrong keys": Row(clients.stranger, ordinary=clients.looks(clients.PACE / 4)),
    "64 tenants that queue": Row(clients.crowd, CROWD),
}
