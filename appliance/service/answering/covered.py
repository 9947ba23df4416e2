"""A streamed answer whose events leave as parcels: it has its record before its last parcel leaves.

The record is written at the end's multiple, and no sooner: the disk shows the multiple, as the
network does. A receipt has the record's place, so it is made then. Where it does not fit into that
parcel, the end is a `total` later.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from appliance.api.problems import RequestError
from appliance.service.answering import receipting, recording
from appliance.service.delivery.parcels import Parcels
from appliance.service.delivery.stream import AnswerStream, Filler
from appliance.service.parts.exchange import Exchange
from appliance.service.parts.wiring import Wiring


class CoveredAnswer:
    """A streamed answer as a source of parcels."""

    def __init__(self, service: Wiring, exchange: Exchange, answer: AnswerStream) -> None:
        self._service, self._exchange, self._answer = service, exchange, answer
        self._filler = Filler(answer.outbox)
        self._opening = answer.opening()
        self._closing: bytes | None = None
        self._split = exchange.receipt is None  # what a receipt stands between was told apart
        self._done = b""  # what follows the receipt
        self._lost: Exception | None = None

    async def parcels(self, size: int) -> AsyncIterator[bytes]:
        """Yield them, each at its multiple."""
        task = asyncio.ensure_future(self._filler.run(self._answer.batches))
        try:
            parcels = Parcels(self, self._answer.pacer, size, self._exchange.note)
            async for parcel in parcels.leave():
                self._exchange.departure.complete = parcels.over
                yield parcel
        finally:
            task.cancel()

    @property
    def error(self) -> Exception | None:
        """Why the answer does not go on."""
        return self._lost or self._filler.error

    @property
    def over(self) -> bool:
        """Whether no more events come but the last."""
        return self._lost is not None or (self._filler.over and self._answer.outbox.empty
                                          and (self._split or self.error is not None))

    def take(self) -> bytes:
        """Return the events for the text that came."""
        self._require_audit()
        events, outbox = b"", self._answer.outbox
        if not outbox.empty:
            events = self._opened() + self._answer.more()
        if self._filler.over and outbox.empty and not (self._split or self.error):
            before, self._done = receipting.split(self._opened() + self._answer.closing())
            self._split, events = True, events + before
        return events

    def closing(self) -> bytes | None:
        """Return the last events; None before the end of an answer that failed, or has a receipt.
        """
        if self._closing is None and self.error is None and self._exchange.receipt is None:
            self._closing = self._opened() + self._answer.closing()
        return self._closing

    async def end(self) -> bytes:
        """Write the answer's record. Returns its receipt, if it has one."""
        service, exchange = self._service, self._exchange
        try:
            if self.error is not None:
                raise self.error
            recording.before_end(service, exchange)
            await recording.flush(service, exchange)
            if exchange.receipt is not None:
                self._closing = self._done
                return receipting.event(service, exchange)
        except Exception as error:  # noqa: BLE001 - the head is sent, so the stream itself has to tell
            self._lost = error
            self._closing = exchange.departure.failed(recording.last_refusal(service, exchange, error))
        return b""

    def _opened(self) -> bytes:
        opening, self._opening = self._opening, b""
        return opening

    def _require_audit(self) -> None:
        """Go on only where records can be written, once the stream's beginning has one."""
        try:
            if self._exchange.entry.started:
                self._service.readiness.require_audit()
        except RequestError as lost:
            self._lost = lost
