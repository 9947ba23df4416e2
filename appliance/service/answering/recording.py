"""The audit log's view of a request: recorded before the end of its answer leaves, never after.

    whole answer or refusal   `request.done` or `request.refused`, then its first byte
    streamed answer           `stream.started`, then its first byte; its own record, then its last events

So every byte that a client gets belongs to a record that is written already. Where a record cannot
be written, the answer's end stays here and the client gets `audit_unavailable` in its place, or
`state_full`. Requests without a key are counted; one record has the counts of a minute.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from appliance.api.problems import RequestError
from appliance.audit.detail import Detail, seal
from appliance.audit.endpoints import ALWAYS, INFERENCE
from appliance.audit.sink import AUDIT_FULL
from appliance.errors import AuditError
from appliance.service.admission.privacy import bucket_us
from appliance.service.answering.exchange import Exchange
from appliance.service.counting.usage import Counts

if TYPE_CHECKING:
    from appliance.service.answering.context import Service


DONE, REFUSED = "request.done", "request.refused"
FULL = "state_full"  # the code of a request that the disk has no room for


def before_head(service: Service, exchange: Exchange) -> None:
    """Record what is about to leave: a whole answer, or that a stream starts. RequestError
    `audit_unavailable` where nothing may leave."""
    if exchange.streaming and exchange.code is None:
        service.require_audit(exchange.endpoint)
        _write(service, exchange, "stream.started", {
            "request": exchange.request_id, "endpoint": exchange.endpoint, **_who(exchange)})
        exchange.started = True
    else:
        before_end(service, exchange)


def before_end(service: Service, exchange: Exchange) -> None:
    """Write the request's own record, unless it is written. RequestError `audit_unavailable` where
    it cannot be."""
    if exchange.recorded:
        return
    if exchange.code is None:
        service.require_audit(exchange.endpoint)
    _settle(service, exchange)


def refused(service: Service, exchange: Exchange, error: Exception) -> RequestError:
    """The refusal that ends a stream, after its record; another one where that record cannot be
    written."""
    found = service.refuse(exchange, error)
    try:
        before_end(service, exchange)
    except RequestError as lost:
        return service.refuse(exchange, lost)
    return found


def at_last(service: Service, exchange: Exchange) -> None:
    """Write the record of a request whose end did not leave: its client has gone, or its stream was
    cut. Of a whole answer that broke off after its record there are two."""
    broken = exchange.recorded == DONE and exchange.code is not None
    if exchange.recorded and not broken:
        return
    if exchange.streaming and exchange.code is None:
        exchange.finish = "cancelled"  # also where the model had ended: the client did not hear of it
    with contextlib.suppress(RequestError):
        _settle(service, exchange)


def charge(service: Service, exchange: Exchange) -> None:
    """Count a request for text in the usage of its key, once it was recorded."""
    if exchange.caller is not None and exchange.endpoint in INFERENCE:
        service.ledger.add(exchange.caller.key_digest, exchange.caller.name, exchange.model, Counts(
            1, int(exchange.code is not None), exchange.prompt_tokens or 0, exchange.completion_tokens or 0,
            exchange.cached_tokens))


def _settle(service: Service, exchange: Exchange) -> None:
    counted = _without_record(service, exchange)
    exchange.recorded = DONE if exchange.code is None else REFUSED
    exchange.duration_us = _duration_us(exchange)
    if counted:
        _count(service, exchange, exchange.code)
    else:
        _record(service, exchange)
    if exchange.code is None:
        service.answered += 1
    else:
        service.refusals[exchange.code] += 1


def _without_record(service: Service, exchange: Exchange) -> bool:
    """Whether a request is counted, and has no record of its own: neither strangers nor one tenant
    may fill the disk by what costs them nothing."""
    if exchange.code == FULL:
        return True
    if exchange.caller is None or not service.audit.folds:
        return service.audit.folds
    answered = exchange.code is None or exchange.started or exchange.recorded == DONE
    free = exchange.endpoint not in INFERENCE or not answered
    return free and not service.own_records.take(exchange.caller.key_digest)


def _count(service: Service, exchange: Exchange, code: str | None) -> None:
    service.audit.counted.request(exchange.endpoint, code, None if exchange.caller is None else exchange.caller.name)


def _record(service: Service, exchange: Exchange) -> None:
    facts = {"request": exchange.request_id, "endpoint": exchange.endpoint, "status": exchange.status or 499,
             **_who(exchange), **_digests(exchange), "duration_us": exchange.duration_us}
    if exchange.code is not None:
        streamed = _generated(exchange) if exchange.started else {}  # of a stream that was cut: what left before
        _write(service, exchange, REFUSED, {
            **facts, **streamed, "code": exchange.code, "param": exchange.param})
        return
    first = exchange.first_token
    first_us = None if first is None else bucket_us(first, exchange.timing.first_token)
    _write(service, exchange, DONE, {
        **facts, **_generated(exchange), "finish": exchange.finish, "first_token_us": first_us,
        "receipt": None if exchange.receipt is None else True, "detail": _detail(service, exchange)})


def _write(service: Service, exchange: Exchange, event: str, facts: dict[str, object]) -> None:
    """One record. RequestError where the log does not take it, and nothing is tried again for this
    request. One for an endpoint that always answers is counted then."""
    try:
        if event == DONE and exchange.receipt is not None:
            exchange.receipt.sealed = service.audit.write_signed(event, **facts)
        else:
            service.audit.write(event, **facts)
        exchange.unflushed = True
    except AuditError as error:
        service.lose_audit(error)
        if exchange.endpoint in ALWAYS:
            _count(service, exchange, exchange.code)
            return
        exchange.recorded, exchange.duration_us = REFUSED, _duration_us(exchange)
        if error.code == AUDIT_FULL:
            _count(service, exchange, FULL)
            raise RequestError(FULL) from None
        raise RequestError("audit_unavailable") from None


def _who(exchange: Exchange) -> dict[str, str | None]:
    return {"tenant": exchange.caller.name if exchange.caller else None, "model": exchange.model}


def _digests(exchange: Exchange) -> dict[str, str | None]:
    """Salted digests of what was asked and answered, in a log of version 2."""
    found = exchange.digests
    if found is None:
        return {}
    return {"request_digest": None if found.request is None else found.request.hex(),
            "answer_digest": None if found.answer is None else found.answer.hex()}


def _detail(service: Service, exchange: Exchange) -> str | None:
    """Exact counts and times, which the policy's auditor alone reads; None where it names none."""
    key = service.policy.privacy.auditor_key
    if key is None or exchange.caller is None:
        return None
    exact = Detail(*exchange.exact, round((time.monotonic() - exchange.arrived) * 1e6),
                   round((exchange.first_token or 0) * 1e6), exchange.caller.key_digest)
    return seal(exact, bytes.fromhex(key.removeprefix("x25519:")), exchange.request_id).hex()


def _generated(exchange: Exchange) -> dict[str, int | None]:
    """The counts of an answer so far; tokens are rounded."""
    return {"streamed": exchange.streamed, "prompt_tokens": exchange.prompt_tokens,
            "completion_tokens": exchange.completion_tokens}


def _duration_us(exchange: Exchange) -> int:
    """From the request's head to the moment at which its end may leave: where that is padded, the
    multiple that it was held to, without the jitter that came on top."""
    held = exchange.pacer.held
    if held is not None:
        return round(held * 1e6)
    return bucket_us(time.monotonic() - exchange.arrived, exchange.timing.total)
