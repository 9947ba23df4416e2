"""Several appliances as one. Each is verified by itself, requests are spread over verified
machines, and a conversation stays where its prefix is.

A request goes to another appliance only where the first has refused it as a whole, or could not be
verified. A request that broke off half-way is never sent twice: the SDK decides.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from appliance.client import exchange
from appliance.client.channel import LIFE_SECONDS, Channel
from appliance.client.connection import Connection
from appliance.client.exchange import Answer, Refusal, Way
from appliance.client.fleet import conversation
from appliance.client.fleet.overlap import is_old
from appliance.client.target import Endpoint
from appliance.client.verdict import Status, Verdict
from appliance.errors import AttestationError

LOOK_SECONDS = 15.0
MAX_PLACES = 1 << 14  # conversations whose place is remembered
_UNAVAILABLE = 503
_LOST = "connection-lost"


class FleetJudge(Protocol):
    """The judge of each appliance of a fleet. Verdicts of another `generation` are not used."""

    @property
    def generation(self) -> int:
        """A number that changes with what is expected."""

    def verify_connection(self, connection: Connection) -> Verdict:
        """The verdict on whoever answers on this connection."""


@dataclass(eq=False)
class Member:
    """One appliance of a fleet, and what is known of it."""

    channel: Channel
    number: int
    lost: bool = True    # not verified, or gone
    old: bool = False    # accepted for the time of an overlap only
    busy: int = 0        # requests in progress
    lock: threading.Lock = field(default_factory=threading.Lock)

    def learn(self, verdict: Verdict) -> None:
        """Note whether a verdict is one for the time of an overlap."""
        self.old = is_old(verdict)

    def count(self, change: int) -> None:
        """Note that a request begins or ends."""
        with self.lock:
            self.busy += change

    def weight(self, key: bytes) -> bytes:
        """A value by which members are ordered for a conversation: the same for each `connect`."""
        return hashlib.sha256(key + str(self.channel.endpoint).encode()).digest()


class Fleet:
    """Sends each request to one of several verified appliances; safe to call from several threads.

    `life`, `accept` and `tell` are those of `Channel`. Machines under the next policy go before
    machines of an overlap, so that requests move over when the first is verified.
    """

    def __init__(self, judge: FleetJudge, endpoints: Sequence[Endpoint], *, life: float = LIFE_SECONDS,
                 accept: tuple[Status, ...] = (), tell: Callable[[Verdict], None] | None = None) -> None:
        self._judge, self._generation = judge, judge.generation
        self._lock = threading.Lock()
        self._places: OrderedDict[bytes, Member] = OrderedDict()
        self._stop = threading.Event()
        self.members = [self._member(number, each, life, accept, tell) for number, each in enumerate(endpoints)]

    def _member(self, number: int, place: Endpoint, life: float, accept: tuple[Status, ...],
                tell: Callable[[Verdict], None] | None) -> Member:
        def learn(verdict: Verdict) -> None:
            member.learn(verdict)
            if tell is not None:
                tell(verdict)

        member = Member(Channel(self._judge, place, life=life, accept=accept, tell=learn), number)
        return member

    def verify(self) -> None:
        """Verify each now. Raises the error of the first where none will do."""
        with ThreadPoolExecutor(len(self.members), "appliance-fleet") as threads:
            errors = list(threads.map(self._check, self.members))
        if all(errors) and errors[0] is not None:
            raise errors[0]

    def _check(self, member: Member) -> AttestationError | None:
        try:
            member.channel.verify()
        except AttestationError as error:
            self._drop(member)
            return error
        member.lost = False
        return None

    def watch(self, seconds: float = LOOK_SECONDS) -> None:
        """Verify lost machines, and machines of an overlap, again and again in threads."""
        for member in self.members:
            threading.Thread(target=self._watch, args=(member, seconds), daemon=True).start()

    def _watch(self, member: Member, seconds: float) -> None:
        while not self._stop.wait(seconds):
            self._renew()
            if member.lost or member.old:
                self._check(member)

    def _renew(self) -> None:
        """Use no verdict again that was reached by other files, or before the end of an overlap."""
        found = self._judge.generation
        with self._lock:
            before, self._generation = self._generation, found
        if before != found:
            for each in self.members:
                each.channel.close()

    def _drop(self, member: Member) -> None:
        member.lost = True
        member.channel.close()

    def send(self, method: str, path: str, headers: Iterable[tuple[str, str]], body: bytes, *,
             way: Way | None = None) -> Answer:
        """Send a request to one of them, and to the next where one refuses it as a whole.

        Raises Refusal as `exchange.send` does; where none is verified, that of the first."""
        self._renew()
        kept = list(headers)
        key = conversation.key(method, kept, body)
        order = self._order(key)
        refusals: list[Refusal] = []
        for number, member in enumerate(order, 1):
            try:
                answer = self._sent(member, method, path, kept, body, way)
            except Refusal as refusal:
                refusals.append(self._judged(member, refusal, len(order)))
                continue
            if answer.status == _UNAVAILABLE and not all(each.lost for each in order[number:]):
                answer.close()
                continue
            self._place(key, member)
            return answer
        raise refusals[0]

    def _sent(self, member: Member, method: str, path: str, headers: exchange.Headers, body: bytes,
              way: Way | None) -> Answer:
        member.count(1)
        try:
            answer = exchange.send(member.channel, method, path, headers, body, way=way)
        except BaseException:
            member.count(-1)
            raise
        member.lost = False
        answer.ended = lambda: member.count(-1)
        return answer

    def _judged(self, member: Member, refusal: Refusal, count: int) -> Refusal:
        """Return a refusal after which the next member may be asked. Raises the refusal of a
        request that may have arrived."""
        if refusal.kind == "appliance_not_verified":
            self._drop(member)
            return refusal
        if refusal.code == _LOST and count > 1:
            self._drop(member)
            refusal.retry = True
        raise refusal

    def _order(self, key: bytes | None) -> list[Member]:
        """The members in the order in which they are asked."""
        with self._lock:
            place = None if key is None else self._places.get(key)

        def rank(member: Member) -> tuple[bool, bool, bool, int, bytes, int]:
            spread = key is not None
            return (member.lost, member.old, member is not place, member.busy if spread else 0,
                    member.weight(key) if key is not None else b"", member.number)
        return sorted(self.members, key=rank)

    def _place(self, key: bytes | None, member: Member) -> None:
        if key is None:
            return
        with self._lock:
            self._places[key] = member
            self._places.move_to_end(key)
            while len(self._places) > MAX_PLACES:
                self._places.popitem(last=False)

    def close(self) -> None:
        """Close idle connections, and watch no longer."""
        self._stop.set()
        for each in self.members:
            each.channel.close()
