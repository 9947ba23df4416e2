"""The receipt of an answer, from the request that asks for it to the answer's last bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from litestar import Request

from appliance.api import findings
from appliance.api.problems import RequestError
from appliance.api.wishes import features
from appliance.service.admission.privacy import pad_event, spaces
from appliance.service.answering.admit import Job
from appliance.service.attesting import receipts
from appliance.service.attesting.receipts import Outcome, ReceiptCase
from appliance.service.parts.exchange import Exchange
from appliance.service.parts.wiring import Wiring

DONE = b"data: [DONE]\n\n"  # the end of OpenAI's streams: readers go no further


def is_wanted(request: Request[Any, Any, Any], service: Wiring) -> bool:
    """Whether a request asks for a receipt. RequestError where the policy gives none."""
    value = request.headers.get(receipts.HEADER)
    if value is None:
        return False
    if value != "1":
        raise RequestError("invalid_value", f"{receipts.HEADER}: the only value is 1")
    if service.attesting.receipts is None:
        raise RequestError("unsupported_parameter", f"{receipts.HEADER}: the policy gives no receipts: "
                           "audit.receipts = false")
    return True


def begin(service: Wiring, exchange: Exchange, job: Job) -> None:
    """Have an answer end with a receipt. Its opening has no tokens where these would show what is
    redacted, or counts that the policy rounds. RequestError for several answers, and for one that
    two sequences make: what is one answer is computed again. It ends where a full context does."""
    generation = job.groups[0][0]
    if job.choices.count > 1:
        raise findings.refusal_of(
            features.exclusion(features.RECEIPT, features.SEVERAL), name=receipts.HEADER,
            param="prompt" if job.choices.tried == 1 else "n", more=f"; found: {job.choices.count}")
    present = {"guidance_scale": bool(generation.negative_ids), "use_beam_search": generation.beam is not None}
    findings.require_together({features.RECEIPT, *(name for name, is_there in present.items() if is_there)})
    generation = replace(generation, shift_keep=None)
    job.groups = ((generation,),)
    redacted = service.substitutions_in("prompt") or service.substitutions_in("answer")
    counted = job.model.policy.tokenization or service.rounding == 1
    exchange.receipt = ReceiptCase(job.model.running, generation, told=counted and not redacted,
                             generation=service.booted.attestor.state.generation)


def last_member(service: Wiring, exchange: Exchange, size: int, spared: int) -> bytes:
    """The receipt as the last member of a whole answer, of which `size` bytes stand before it.
    `spared` spaces of the answer's own follow, and those of the policy are counted anew."""
    tail = receipts.member(_receipt(service, exchange)) + b" " * spared
    exchange.departure.spaces = spaces(size + len(tail), service.padding)
    return tail


def split(data: bytes) -> tuple[bytes, bytes]:
    """Split the last events of a stream: before a receipt, and after it."""
    return (data[:-len(DONE)], DONE) if data.endswith(DONE) else (data, b"")


def event(service: Wiring, exchange: Exchange) -> bytes:
    """Return the receipt as an event of a stream."""
    return receipts.event(_receipt(service, exchange), exchange.request_id)


def last_event(service: Wiring, exchange: Exchange, end: bytes) -> bytes:
    """The receipt as a stream's last event but for its `end`, padded behind the receipt."""
    data = event(service, exchange)
    padded = pad_event(data + end, service.padding)
    return data + padded[:len(padded) - len(data) - len(end)] + end


def _receipt(service: Wiring, exchange: Exchange) -> dict[str, Any]:
    if service.attesting.receipts is None or exchange.receipt is None or exchange.digests is None:
        raise TypeError("a receipt that was not asked for")
    course = exchange.course
    return service.attesting.receipts.make(exchange.receipt, exchange.digests, Outcome(
        exchange.request_id, exchange.endpoint, bool(course.streamed), course.finish or "stop",
        course.prompt_tokens or 0, course.completion_tokens or 0, course.cached_tokens, service.rounding))
