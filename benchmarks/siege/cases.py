"""The hostile cases, one row each: the clients, and ordinary ones that cause the same load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.siege import bombs, clients
from benchmarks.siege.clients import Client

ANSWERS, LONGEST = 32, 1024  # of one request; tokens of each
CROWD, SLOW = 64, 64  # tenants that queue, connections that drip


@dataclass(frozen=True)
class Row:
    """A case. `ordinary`: clients whose load is the same; None: that of many small constraints,
    which several rows have in common. `own`: hostile clients are compared with by their own first
    tokens, since they want nothing but what all want."""

    hostile: Client
    clients: int = 8
    ordinary: Client | None = None
    ordinary_clients: int | None = None
    own: bool = False


def small(number: int) -> bombs.Parameters:
    """A constraint as many ask for."""
    return {"guided_choice": [f"yes {number}", "no"]}


def open_text(number: int) -> bombs.Parameters:
    """A constraint that leaves nearly everything open, to the end of an answer's tokens."""
    return {"regex": f"(.|\n)*{number}"}


USUAL = Row(clients.sends([small]))

CASES: Mapping[str, Row] = {
    "grammars of 24 KB": Row(clients.sends(bombs.grammars(bombs.SMALL))),
    "grammars of 520 KB": Row(clients.sends(bombs.grammars(bombs.LARGE))),
    "literals of 200 KB, 10,000 words": Row(clients.sends(bombs.LITERALS)),
    "the same, and clients leave": Row(clients.sends(bombs.LITERALS, seconds=0.3), 16),
    "repeats in GBNF": Row(clients.sends(bombs.REPEATS)),
    "JSON schemas": Row(clients.sends(bombs.SCHEMAS)),
    "patterns": Row(clients.sends(bombs.PATTERNS)),
    "masks": Row(clients.sends(bombs.MASKS, max_tokens=64), 12, clients.sends([open_text], max_tokens=64), 12),
    "choices": Row(clients.sends(bombs.CHOICES)),
    "tools": Row(clients.chats(bombs.TOOLS)),
    "bodies of 1 MiB": Row(clients.bodies(list(bombs.BODIES.values()))),
    "chats of many messages": Row(clients.chats(bombs.CHATS)),
    "caches thrashed": Row(clients.caches, 16, clients.sends([small]), 16),
    "32 answers of a request": Row(clients.asks(n=ANSWERS, max_tokens=LONGEST), 1,
                                   clients.asks(max_tokens=LONGEST), ANSWERS),
    "32 prompts of a request": Row(clients.asks(prompt=["Say it."] * ANSWERS, max_tokens=LONGEST), 1,
                                   clients.asks(max_tokens=LONGEST), ANSWERS),
    "pages and session disk filled": Row(clients.prompts(900, 4), 12, clients.asks(max_tokens=32), 12),
    "slow readers": Row(clients.slow_reader, SLOW, clients.asks(max_tokens=200), SLOW),
    "slow writers": Row(clients.slow_writer, SLOW),
    "chunks of a byte": Row(clients.small_chunks),
    "requests before answers": Row(clients.pipelining),
    "wrong keys": Row(clients.stranger),
    "64 tenants that queue": Row(clients.crowd, CROWD, own=True),
}
