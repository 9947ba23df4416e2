"""The audit log's view of a request: recorded before the end of its answer leaves, never after.

    whole answer or refusal   `request.done` or `request.refused`, then its first byte
    streamed answer           `stream.started`, then its first byte; its own record, then its last events
    refusal that looks so     the same
    where ends are hidden     `request.ended` in the place of both

So every byte that a client gets belongs to a record that is written already. Where a record cannot
be written, the answer's end stays here and the client gets `audit_unavailable` in its place, or
`state_full`. Requests without a key are counted; one record has the counts of a minute.
"""

from __future__ import annotations

import contextlib
import time

from appliance.api.problems import RequestError
from appliance.audit.detail import Detail, seal, seal_outcome
from appliance.audit.endpoints import ALWAYS, INFERENCE
from appliance.audit.sink import AUDIT_FULL
from appliance.errors import AuditError
from appliance.service.admission.privacy import bucket_us
from appliance.service.counting.usage import RequestCounts
from appliance.service.parts import refusals
from appliance.service.parts.exchange import Exchange
from appliance.service.parts.wiring import Wiring

DONE, REFUSED, ENDED = "request.done", "request.refused", "request.ended"
FULL = "state_full"  # the code of a request that the disk has no room for


def before_head(service: Wiring, exchange: Exchange) -> None:
    """Record what is about to leave: a whole answer, or that a stream starts. RequestError
    `audit_unavailable` where nothing may leave."""
    starts = exchange.departure.streaming and exchange.entry.code is None
    if starts:
        service.readiness.require_audit(exchange.endpoint)
    alike = exchange.refused_alike and not exchange.entry.event and not _without_record(service, exchange)
    if starts or alike:
        who = _who(exchange)
        _write(service, exchange, "stream.started", {
            "request": exchange.request_id, "endpoint": exchange.endpoint,
            **({"tenant": who["tenant"]} if _hides(service, exchange) else who)})
        exchange.entry.started = True
    else:
        before_end(service, exchange)


def before_end(service: Wiring, exchange: Exchange) -> None:
    """Write the request's own record, unless it is written. RequestError `audit_unavailable` where
    it cannot be."""
    if exchange.entry.event:
        return
    if exchange.entry.code is None:
        service.readiness.require_audit(exchange.endpoint)
    _settle(service, exchange)


def last_refusal(service: Wiring, exchange: Exchange, error: Exception) -> RequestError:
    """Return the refusal that ends a stream, after its record; another one where that record cannot
    be written."""
    refusal = refusals.refuse(service, exchange, error)
    try:
        before_end(service, exchange)
    except RequestError as lost:
        return refusals.refuse(service, exchange, lost)
    return refusal


async def flush(service: Wiring, exchange: Exchange) -> None:
    """Wait until a request's record is on the disk, if there is a new one. RequestError where it
    cannot be."""
    if exchange.entry.unflushed:
        exchange.entry.unflushed = False
        await service.readiness.flush(exchange.endpoint)


def at_last(service: Wiring, exchange: Exchange) -> None:
    """Write the record of a request whose end did not leave: its client has gone, or its stream was
    cut. Of a whole answer that broke off after its record there are two."""
    broken = exchange.entry.event == DONE and exchange.entry.code is not None
    if exchange.entry.event and not broken:
        return
    if exchange.departure.streaming and exchange.entry.code is None:
        exchange.course.finish = "cancelled"  # also where the model had ended: the client did not hear of it
    with contextlib.suppress(RequestError):
        _settle(service, exchange)


def charge(service: Wiring, exchange: Exchange) -> None:
    """Count a request for text in the usage of its key, once it was recorded."""
    if exchange.caller is not None and exchange.endpoint in INFERENCE:
        course = exchange.course
        service.books.ledger.add(exchange.caller.key_digest, exchange.caller.name, exchange.model, RequestCounts(
            1, int(exchange.entry.code is not None), course.prompt_tokens or 0, course.completion_tokens or 0,
            course.cached_tokens))


def _settle(service: Wiring, exchange: Exchange) -> None:
    counted = _without_record(service, exchange)
    exchange.entry.event = DONE if exchange.entry.code is None else REFUSED
    exchange.entry.duration_us = _duration_us(exchange)
    if counted:
        _count(service, exchange, exchange.entry.code)
    else:
        _record(service, exchange)
    if exchange.entry.code is None:
        service.books.answered += 1
    else:
        service.books.refusals[exchange.entry.code] += 1


def _without_record(service: Wiring, exchange: Exchange) -> bool:
    """Whether a request is counted, and has no record of its own: neither strangers nor one tenant
    may fill the disk by what costs them nothing."""
    if exchange.entry.code == FULL:
        return True
    if exchange.caller is None or not service.audit.folds:
        return service.audit.folds
    answered = exchange.entry.code is None or exchange.entry.started or exchange.entry.event == DONE
    free = exchange.endpoint not in INFERENCE or not answered
    return free and not service.books.own_records.take(exchange.caller.key_digest)


def _count(service: Wiring, exchange: Exchange, code: str | None) -> None:
    service.audit.counted.request(exchange.endpoint, code, None if exchange.caller is None else exchange.caller.name)


def _record(service: Wiring, exchange: Exchange) -> None:
    facts = {"request": exchange.request_id, "endpoint": exchange.endpoint, "status": exchange.entry.status or 499,
             **_who(exchange), **_digests(exchange), "duration_us": exchange.entry.duration_us}
    if _hides(service, exchange):
        _write(service, exchange, ENDED, _ended(service, exchange))
        return
    if exchange.entry.code is not None:
        streamed = _counts(exchange) if exchange.entry.started else {}  # of a stream that was cut: what left before
        _write(service, exchange, REFUSED, {
            **facts, **streamed, "code": exchange.entry.code, "param": exchange.entry.param})
        return
    first = exchange.course.first_token
    first_us = None if first is None else bucket_us(first, exchange.timing.first_token)
    _write(service, exchange, DONE, {
        **facts, **_counts(exchange), "finish": exchange.course.finish, "first_token_us": first_us,
        "receipt": None if exchange.receipt is None else True, "detail": _detail(service, exchange)})


def _hides(service: Wiring, exchange: Exchange) -> bool:
    """Whether the record of a request does not say how it ended."""
    return service.policy.audit.outcomes == "hidden" and exchange.endpoint in INFERENCE


def _ended(service: Wiring, exchange: Exchange) -> dict[str, object]:
    """A record of one form and size, however the request ended."""
    if exchange.digests is None:
        raise TypeError("a hidden end in a log without digests")
    request, answer = exchange.digests.both
    return {"request": exchange.request_id, "endpoint": exchange.endpoint, "tenant": _who(exchange)["tenant"],
            "duration_us": exchange.entry.duration_us, "request_digest": request.hex(), "answer_digest": answer.hex(),
            "outcome": _outcome(service, exchange)}


def _outcome(service: Wiring, exchange: Exchange) -> str | None:
    """Return how the request ended, which the policy's auditor alone reads; None without one."""
    key, entry, course = service.policy.privacy.auditor_key, exchange.entry, exchange.course
    if key is None or exchange.caller is None:
        return None
    refused = entry.code is not None
    prompt, completion = course.exact
    facts = {"status": entry.status or 499, "code": entry.code, "param": entry.param, "model": exchange.model,
             "finish": None if refused else course.finish, "prompt_tokens": prompt, "completion_tokens": completion,
             "duration_us": round((time.monotonic() - exchange.arrived) * 1e6),
             "first_token_us": round((course.first_token or 0) * 1e6), "receipt": exchange.receipt is not None,
             "key_sha256": exchange.caller.key_digest.hex()}
    return seal_outcome(facts, bytes.fromhex(key.removeprefix("x25519:")), exchange.request_id).hex()


def _write(service: Wiring, exchange: Exchange, event: str, facts: dict[str, object]) -> None:
    """One record. RequestError where the log does not take it, and nothing is tried again for this
    request. One for an endpoint that always answers is counted then."""
    try:
        if event in (DONE, ENDED) and exchange.receipt is not None and exchange.entry.code is None:
            exchange.receipt.sealed = service.audit.write_signed(event, **facts)
        else:
            service.audit.write(event, **facts)
        exchange.entry.unflushed = True
    except AuditError as error:
        service.readiness.lose_audit(error)
        if exchange.endpoint in ALWAYS:
            _count(service, exchange, exchange.entry.code)
            return
        exchange.entry.event, exchange.entry.duration_us = REFUSED, _duration_us(exchange)
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


def _detail(service: Wiring, exchange: Exchange) -> str | None:
    """Exact counts and times, which the policy's auditor alone reads; None where it names none."""
    key = service.policy.privacy.auditor_key
    if key is None or exchange.caller is None:
        return None
    exact = Detail(*exchange.course.exact, round((time.monotonic() - exchange.arrived) * 1e6),
                   round((exchange.course.first_token or 0) * 1e6), exchange.caller.key_digest)
    return seal(exact, bytes.fromhex(key.removeprefix("x25519:")), exchange.request_id).hex()


def _counts(exchange: Exchange) -> dict[str, int | None]:
    """The counts of an answer so far; tokens are rounded."""
    return {"streamed": exchange.course.streamed, "prompt_tokens": exchange.course.prompt_tokens,
            "completion_tokens": exchange.course.completion_tokens}


def _duration_us(exchange: Exchange) -> int:
    """From the request's head to the moment at which its end may leave: where that is padded, the
    multiple that it was held to, without the jitter that came on top."""
    held = exchange.pacer.held
    if held is not None:
        return round(held * 1e6)
    return bucket_us(time.monotonic() - exchange.arrived, exchange.timing.total)
