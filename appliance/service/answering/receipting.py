"""The receipt of an answer, from the request that asks for it to the answer's last bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from litestar import Request

from appliance.api.problems import RequestError
from appliance.service.admission.privacy import pad_event, spaces
from appliance.service.answering.admit import Job
from appliance.service.answering.context import Service
from appliance.service.answering.exchange import Exchange
from appliance.service.attesting import receipts
from appliance.service.attesting.receipts import Given, Outcome

DONE = b"data: [DONE]\n\n"  # the end of OpenAI's streams: readers go no further


def asked(request: Request[Any, Any, Any], service: Service) -> bool:
    """Whether a request asks for a receipt. RequestError where the policy gives none."""
    value = request.headers.get(receipts.HEADER)
    if value is None:
        return False
    if value != "1":
        raise RequestError("invalid_value", f"{receipts.HEADER}: the only value is 1")
    if service.receipts is None:
        raise RequestError("unsupported_parameter", f"{receipts.HEADER}: the policy gives no receipts: "
                           "audit.receipts = false")
    return True


def begin(service: Service, exchange: Exchange, job: Job) -> None:
    """Have an answer end with a receipt. Its opening has no tokens where these would show what is
    redacted, or counts that the policy rounds. RequestError for several answers, and for one that
    two sequences make: what is one answer is computed again. It ends where a full context does."""
    generation = job.groups[0][0]
    if job.choices.count > 1:
        raise RequestError("unsupported_parameter", f"{receipts.HEADER}: a receipt is of one answer; found: "
                           f"{job.choices.count}", param="prompt" if job.choices.tried == 1 else "n")
    if generation.negative_ids:
        raise RequestError("unsupported_parameter", f"guidance_scale: no answer with {receipts.HEADER} has a negative "
                           "prompt", param="guidance_scale")
    if generation.beam is not None:
        raise RequestError("unsupported_parameter", f"use_beam_search: no answer with {receipts.HEADER} comes of one",
                           param="use_beam_search")
    generation = replace(generation, shift_keep=None)
    job.groups = ((generation,),)
    redacted = service.rules_for("prompt") or service.rules_for("answer")
    counted = job.model.policy.tokenization or service.rounding == 1
    exchange.receipt = Given(job.model.running, generation, told=counted and not redacted,
                             generation=service.booted.attestor.state.generation)


def last_member(service: Service, exchange: Exchange, size: int, spared: int) -> bytes:
    """The receipt as the last member of a whole answer, of which `size` bytes stand before it.
    `spared` spaces of the answer's own follow, and those of the policy are counted anew."""
    tail = receipts.member(_made(service, exchange)) + b" " * spared
    exchange.spaces = spaces(size + len(tail), service.policy.privacy.size_padding_bytes)
    return tail


def split(data: bytes) -> tuple[bytes, bytes]:
    """The last events of a stream, and what of them must come after a receipt."""
    return (data[:-len(DONE)], DONE) if data.endswith(DONE) else (data, b"")


def last_event(service: Service, exchange: Exchange, end: bytes) -> bytes:
    """The receipt as a stream's last event but for its `end`, padded behind the receipt."""
    data = receipts.event(_made(service, exchange), exchange.request_id)
    padded = pad_event(data + end, service.policy.privacy.size_padding_bytes)
    return data + padded[:len(padded) - len(data) - len(end)] + end


def _made(service: Service, exchange: Exchange) -> dict[str, Any]:
    if service.receipts is None or exchange.receipt is None or exchange.digests is None:
        raise TypeError("a receipt that was not asked for")
    return service.receipts.made(exchange.receipt, exchange.digests, Outcome(
        exchange.request_id, exchange.endpoint, bool(exchange.streamed), exchange.finish or "stop",
        exchange.prompt_tokens or 0, exchange.completion_tokens or 0, exchange.cached_tokens, service.rounding))
