"""Receipts: an answer's record in the log, bound to model, policy and image, and signed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from appliance.audit.digests import Digests
from appliance.audit.log import AuditLog, RecordProof
from appliance.boot.booted import Booted
from appliance.boot.running.load import RunningModel
from appliance.codec import strict
from appliance.engine.decode.chain.ending import FREE
from appliance.engine.decode.generation import GenerationRequest
from appliance.policy.schema.sampling import PARAMETERS
from appliance.receipts import cwt, dsse, opening, statement
from appliance.receipts.statement import (
    Answered,
    AnsweringModel,
    Asked,
    Choosing,
    Image,
    Receipt,
    RecordPlace,
    Tokens,
)

HEADER = "appliance-receipt"  # a request that has it, with the value "1", gets one


@dataclass
class ReceiptCase:
    """An answer for which a receipt was asked. `chosen` grows with the answer; `told`: whether its
    tokens may be in the opening."""

    model: RunningModel
    request: GenerationRequest
    told: bool
    generation: int  # in which the request was let in
    chosen: list[int] = field(default_factory=list)
    sealed: RecordProof | None = None  # its record, once that is written


@dataclass(frozen=True)
class Outcome:
    """The facts of an answer that has ended, counts as the policy rounds them."""

    request_id: str
    endpoint: str
    streamed: bool
    finish: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    rounding: int


class Receipts:
    """Makes receipts of one boot."""

    def __init__(self, booted: Booted) -> None:
        """Asks the platform for the launch measurement once. Raises AttestationError."""
        self._audit: AuditLog = booted.audit
        self._attestor = booted.attestor
        measured, build = booted.attestor.measurement(), booted.attestor.state.build
        key = booted.policy.privacy.auditor_key  # reads openings that clients may not see
        self._auditor = None if key is None else bytes.fromhex(key.removeprefix("x25519:"))
        self._policy_sha384 = booted.policy_digest.hex()
        audit = booted.policy.audit
        self._placed, self._named = audit.receipt_position == "now", audit.outcomes == "named"
        self._image = Image(
            platform=booted.attestor.platform, measurement=None if measured is None else measured.hex(),
            version=build.version, code_sha384=build.code_sha384, kernels_sha384=build.kernels_sha384,
            self_test_sha384=booted.self_test.digest.hex())

    def make(self, given: ReceiptCase, digests: Digests, outcome: Outcome) -> dict[str, Any]:
        """The receipt of an answer whose record is written: two signed envelopes, and the opening.
        """
        settings = _settings(given)
        receipt = self._statement(given, digests, outcome, settings)
        chain = self._audit.chain
        if chain is None:
            raise TypeError("a receipt without a chained log")
        payload = receipt.encode()
        made = {"envelope": dsse.sign(payload, chain.private, chain.key.id.hex()),
                "cwt": strict.to_base64url(cwt.sign(receipt, payload, chain.private))}
        whole = _whole(given, digests, settings)
        if given.told:
            return made | {"opening": whole}
        salts = {name: digests.salts[name].hex() for name in ("request", "answer")}
        made |= {"opening": {"salts": salts}}
        if self._auditor is not None:
            made |= {"auditor": opening.seal(whole, self._auditor, outcome.request_id, outcome.rounding)}
        return made

    def _statement(self, given: ReceiptCase, digests: Digests, outcome: Outcome,
                   settings: Mapping[str, Any]) -> Receipt:
        sealed, source, policy = given.sealed, given.model.source, given.model.policy
        if sealed is None or digests.request is None or digests.answer is None:
            raise TypeError("a receipt before its record")
        header = source.header_sha256
        chosen, placed, named = given.request.sampling, self._placed, self._named
        return Receipt(
            type="appliance/receipt/v1" if placed else "appliance/receipt/v2" if named else "appliance/receipt/v3",
            request=Asked(id=outcome.request_id, endpoint=outcome.endpoint, digest=digests.request.hex()),
            answer=Answered(digest=digests.answer.hex(), streamed=outcome.streamed,
                            finish=outcome.finish if named else None),
            tokens=Tokens(digest=digests.tokens(given.request.prompt_ids, given.chosen).hex(),
                          prompt=outcome.prompt_tokens, completion=outcome.completion_tokens,
                          cached=outcome.cached_tokens if named else None, rounding=outcome.rounding),
            model=AnsweringModel(
                name=given.model.name, sha256=source.sha256.hex(),
                sealed_header_sha256=None if header is None else header.hex(),
                publisher=None if policy.publisher is None else policy.publisher.public_key,
                publisher_identity=None if policy.publisher is None else policy.publisher.identity),
            policy_sha384=self._policy_sha384, image=self._image, generation=given.generation,
            sampling=Choosing(
                samplers=tuple(chosen.samplers), settings={
                    **{each.name: getattr(chosen, each.name) for each in PARAMETERS}, **_rope(given), **_access(given)},
                seed=str(chosen.seed), kv_cache=policy.kv_cache,
                digest=statement.settings_digest(digests.salts["settings"], settings).hex()),
            record=RecordPlace(
                log=(sealed.head.checkpoint.origin.rpartition("/")[2]), epoch=sealed.epoch, boot=sealed.boot,
                seq=sealed.seq if placed else None, leaf=sealed.leaf.hex()),
            time=sealed.time, checkpoint=sealed.head.note.encode().decode() if placed else None,
            path=tuple(each.hex() for each in sealed.path) if placed else None)


def _rope(given: ReceiptCase) -> dict[str, int | float]:
    """The positions beyond those of the model's file, where the policy gives it some."""
    rope = given.model.engine.rope
    if rope is None or rope.original is None:
        return {}
    return {statement.ROPE_FACTOR: rope.factor, statement.ROPE_ORIGINAL: rope.original}


def _access(given: ReceiptCase) -> dict[str, int]:
    """Whether the host sees which experts and embeddings are read, and which pages a text needs."""
    leaks, sweeps = given.model.policy.access_pattern == "leaks", given.model.tokenizer.sweeping is not None
    return ({statement.LEAKS: 1} if leaks else {}) | ({statement.OBLIVIOUS: 1} if sweeps else {})


def _whole(given: ReceiptCase, digests: Digests, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The opening with all that the answer is computed from."""
    ends = bool(given.chosen) and given.chosen[-1] in given.request.ending.ends(given.model.tokenizer.eot_ids)
    return {"salts": {name: salt.hex() for name, salt in digests.salts.items()},
            "prompt_tokens": list(given.request.prompt_ids), "tokens": given.chosen[:-1] if ends else given.chosen[:],
            "ending": given.chosen[-1] if ends else None, **settings}


def _settings(given: ReceiptCase) -> dict[str, Any]:
    """Everything that the choice of tokens depends on."""
    asked = given.request
    sampling = asked.sampling.as_json()
    sampling["logit_bias"] = {str(token): bias for token, bias in sampling["logit_bias"].items()}
    return {"sampling": sampling, "seed": str(asked.sampling.seed), "max_tokens": asked.max_tokens,
            "stop": list(asked.stop), "constraint": None if asked.constraint is None else asked.constraint.text,
            "kv_cache": given.model.policy.kv_cache,
            **({} if asked.ending == FREE else {"ends": asked.ending.as_json()})}


def member(receipt: Mapping[str, Any]) -> bytes:
    """A receipt as the last member of a JSON object, with the brace that ends that."""
    return b',"receipt":' + json.dumps(receipt, separators=(",", ":")).encode() + b"}"


def event(receipt: Mapping[str, Any], request_id: str) -> bytes:
    """A receipt as a server-sent event."""
    data = json.dumps(statement.event_data(receipt, request_id), separators=(",", ":"))
    return b"event: appliance.receipt\ndata: " + data.encode() + b"\n\n"
