"""Trials of all pairs in random order, over several connections at once, with the observations."""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.leakage.deployed import NEIGHBOUR, WATCHER, lane
from benchmarks.leakage.pairs import PAIRS, Asked, Maker
from benchmarks.tenants.served import key_of
from benchmarks.tenants.wire import Connection, Reply

METRICS_SECONDS = 0.1  # between two readings of `/metrics`
IDLE_SECONDS = 5.0  # after which a connection is not used again
MOST_LOST = 0.02  # of the trials may end without an answer
AHEAD_SECONDS = 0.01  # that a neighbour's requests come before the trial's own
PAUSE_SECONDS = 0.25  # before a request, at most: lanes whose answers take equally long would go on in step
ROUND = 20  # trials of each pair, of which one half has the secret
OK = 200  # the status of all trials but those of `refused`
CHAT = "/v1/chat/completions"


@dataclass
class Trial:
    """One trial. `port`: the client's end of the connection; times are of the monotonic clock."""

    pair: str
    secret: bool
    lane: int = 0
    port: int = 0
    asked: float = 0.0
    ended: float = 0.0
    status: int = 0
    receipt: dict[str, Any] = field(default_factory=dict)


@dataclass
class Seen:
    """Trials in the order in which they ended, and readings of `/metrics`, each with the times at
    which it was asked and ended, and the client's port."""

    trials: list[Trial] = field(default_factory=list)
    metrics: list[tuple[float, float, int, str]] = field(default_factory=list)
    lost: int = 0
    wrong: set[str] = field(default_factory=set)  # statuses that a pair does not compare, in words

    def check(self, trial: Trial, reply: Reply) -> None:
        """Note an answer in a refusal's place, or a refusal in an answer's. The pair then differs
        in another thing than its name says, or in none."""
        if (reply.status == OK) == (trial.pair == "refused" and trial.secret):
            self.wrong.add(f"{trial.pair}: {reply.status} {reply.body[:200].decode(errors='replace').strip()}")


def anyone() -> ssl.SSLContext:
    """Return a context that takes any certificate, as an onlooker's client would."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class Client:
    """A tenant's client, with one connection for one request at a time."""

    def __init__(self, port: int, tenant: str, *, receipts: bool = False) -> None:
        self._port, self._key, self._tls = port, key_of(tenant), anyone()
        self._more = ["appliance-receipt: 1"] if receipts else []
        self._connection: Connection | None = None

    async def ready(self) -> int:
        """Connect if the connection was idle for long; return its port on this side."""
        if self._connection is None or self._connection.idle > IDLE_SECONDS:
            self.close()
            self._connection = await Connection.to(self._port, tls=self._tls)
        return self._connection.port

    async def ask(self, body: bytes | None, path: str = CHAT) -> Reply:
        """Ask, and read the whole answer."""
        await self.ready()
        assert self._connection is not None
        method, more = ("GET", ()) if body is None else ("POST", self._more)
        try:
            reply = await self._connection.ask(method, path, self._key, body, more=more)
        except BaseException:
            self.close()
            raise
        if reply.headers.get("connection", "").lower() == "close":
            self.close()
        return reply

    def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def receipt_of(reply: Reply) -> dict[str, Any]:
    """Return an answer's receipt without its opening, as somebody else may be shown it."""
    found: dict[str, Any] = (reply.value or {}).get("receipt", {}) if reply.body[:1] == b"{" else next(
        (event["receipt"] for _, event in reply.events if "receipt" in event), {})
    return {name: value for name, value in found.items() if name in ("envelope", "cwt")}


@dataclass(frozen=True)
class Ports:
    """The relay's port, which is watched, and the appliance's own."""

    relay: int
    own: int


class Lane:
    """Takes trials from a list, one after the other."""

    def __init__(self, ports: Ports, number: int, make: Maker, *, receipts: bool) -> None:
        self._number, self._make = number, make
        self._client = Client(ports.relay, lane(number), receipts=receipts)
        self._neighbours = [Client(ports.own, NEIGHBOUR) for _ in range(8)]
        self._pauses = random.Random(f"pauses {number}")

    async def run(self, waiting: list[Trial], seen: Seen, done: Callable[[], None], until: float) -> None:
        """Run trials until none waits or the time is over."""
        while waiting and time.monotonic() < until:
            trial = waiting.pop()
            try:
                await self._trial(trial, PAIRS[trial.pair](self._make, trial.secret), seen)
            except (OSError, EOFError, ValueError):
                seen.lost += 1
            else:
                seen.trials.append(trial)
            done()
        for each in (self._client, *self._neighbours):
            each.close()

    async def _trial(self, trial: Trial, asked: Asked, seen: Seen) -> None:
        for client, first in ((self._client, asked.before), (self._neighbours[0], asked.elsewhere)):
            if first is not None:
                await asyncio.sleep(self._pauses.uniform(0, PAUSE_SECONDS))
                seen.check(trial, await client.ask(first))
        await asyncio.sleep(self._pauses.uniform(0, PAUSE_SECONDS))
        trial.port, trial.lane = await self._client.ready(), self._number
        busy = [asyncio.create_task(client.ask(body))
                for client, body in zip(self._neighbours, asked.neighbours, strict=False)]
        await asyncio.sleep(AHEAD_SECONDS)
        reply = await self._client.ask(asked.body)
        trial.asked, trial.ended, trial.status = reply.asked, reply.ended, reply.status
        trial.receipt = receipt_of(reply)
        seen.check(trial, reply)
        await asyncio.gather(*busy)


async def _watch(port: int, seen: Seen) -> None:
    """Read `/metrics` again and again."""
    client = Client(port, WATCHER)
    while True:
        own = await client.ready()
        reply = await client.ask(None, "/metrics")
        seen.metrics.append((reply.asked, reply.ended, own, reply.body.decode()))
        await asyncio.sleep(METRICS_SECONDS)


def drawn(pairs: Iterable[str], trials: int, draw: random.Random) -> list[Trial]:
    """Return trials of pairs in random order. Each `ROUND` of a pair has both secrets equally
    often, so that a run which ends early has no more of one. A guess at it would be right too
    often."""
    pairs, listed = tuple(pairs), list[Trial]()
    for begun in range(0, trials, ROUND):
        count = min(ROUND, trials - begun)
        some = [Trial(pair, number % 2 > 0) for pair in pairs for number in range(count)]
        draw.shuffle(some)
        listed += some
    return listed


async def run(ports: Ports, lanes: int, waiting: list[Trial], *, model: str, receipts: bool, done: Callable[[], None],
              seconds: float, stream: bool = True) -> Seen:
    """Run all trials. SystemExit if too many have no answer, or one has another status than its
    pair compares."""
    seen = Seen()
    watching = asyncio.create_task(_watch(ports.relay, seen))
    members = {} if stream else {"stream": False}
    runs = [Lane(ports, number, Maker(model, random.Random(f"lane {number} {len(waiting)}"), members),
                 receipts=receipts) for number in range(lanes)]
    try:
        await asyncio.gather(*(each.run(waiting, seen, done, time.monotonic() + seconds) for each in runs))
        await asyncio.sleep(2 * METRICS_SECONDS)
    finally:
        watching.cancel()
    if seen.wrong:
        raise SystemExit("these requests do not compare what their pair says; a model with more characters in a token, "
                         f"or higher limits, may do: {'; '.join(sorted(seen.wrong))}")
    if seen.lost > MOST_LOST * (len(seen.trials) + seen.lost):
        raise SystemExit(f"{seen.lost} of {len(seen.trials) + seen.lost} requests have no answer")
    return seen
