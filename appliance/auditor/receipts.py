"""A receipt against the answer, the request, the log and the policy that it is about. Offline.

An answer is taken as it came: a whole body whose last member is the receipt, or a stream whose last
event is. The answer's digest is over everything before.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from appliance.audit.chain import origin
from appliance.audit.digests import token_bytes
from appliance.auditor import bundle
from appliance.auditor.records import Reader
from appliance.codec import strict
from appliance.errors import NoteError
from appliance.policy.schema import Policy
from appliance.receipts import envelopes, statement
from appliance.receipts.statement import Receipt, RecordPlace, event_data
from appliance.transparency import reading, tree
from appliance.transparency.note import NoteKey

MEMBER, EVENT = b',"receipt":', b"event: appliance.receipt\ndata: "
_REST = re.compile(rb"\n(?:: *\n)?(?:data: \[DONE\]\n\n)?")  # the end of a stream behind its receipt
SETTINGS = ("sampling", "seed", "max_tokens", "stop", "constraint", "kv_cache")
ENDS = "ends"  # one more in version 2 of an opening: of an answer whose request says when it may end
_TOLD = frozenset({"salts", "prompt_tokens", "tokens", "ending", *SETTINGS})
_OPENINGS = {  # the members of an opening -> those of its salts
    frozenset(): frozenset(), frozenset({"salts"}): frozenset({"request", "answer"}),
    **dict.fromkeys((_TOLD, _TOLD | {ENDS}), frozenset({"request", "answer", "tokens", "settings"}))}
MAX_ANSWER_BYTES = 64 << 20


@dataclass(frozen=True)
class KeptReceipt:
    """A receipt that was taken from an answer. `answer`: the bytes that its digest is over, None
    for a receipt without its answer."""

    envelope: Any
    token: str | None
    opening: Mapping[str, Any]
    answer: bytes | None
    request_id: str | None = None  # as a stream's event says it
    sealed: str | None = None  # its opening for the auditor, where its client may not see it


@dataclass(frozen=True)
class ReceiptDemands:
    """The facts that an auditor knows of the appliance; None is not compared."""

    key: bytes
    policy_sha384: str | None = None
    policy: Policy | None = None
    self_test_sha384: str | None = None
    measurement: str | None = None
    code_sha384: str | None = None


def take(data: bytes) -> KeptReceipt:
    """Return the receipt in an answer, or in a file of its own. Raises NoteError if there is
    none."""
    try:
        if (at := data.rfind(EVENT)) >= 0:
            line, _, rest = data[at + len(EVENT):].partition(b"\n")
            value = _spelled(line)
            if _REST.fullmatch(rest) is None or value != event_data(value["receipt"], value["id"]):
                raise ValueError("another event")
            return _taken(value["receipt"], data[:at], value["id"])
        if (at := data.rfind(MEMBER)) >= 0:
            body = data.rstrip(b" ")
            if not body.endswith(b"}"):
                raise ValueError("a body that was cut")
            return _taken(_spelled(body[at + len(MEMBER):-1]), data[:at] + b"}")
        return _taken(strict.json_value(data), None)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise NoteError("no receipt: neither the last member of a whole answer nor the last event of a stream",
                        hint="ask for one with the header appliance-receipt: 1, and keep the body as it came") from None


def record_of(data: bytes) -> RecordPlace:
    """Return the record that an answer's receipt names, unverified. Raises NoteError."""
    return envelopes.statement(envelopes.parts(take(data).envelope)[0]).record


def _spelled(raw: bytes) -> Any:
    """Return a JSON value in the one spelling that answers have. Raises ValueError for another."""
    value = strict.json_value(raw)
    if json.dumps(value, separators=(",", ":")).encode() != raw:
        raise ValueError("another spelling")
    return value


_MEMBERS = {"envelope", "cwt", "opening", "auditor"}


def _taken(value: Any, answer: bytes | None, request_id: str | None = None) -> KeptReceipt:
    opening = value.get("opening", {})
    if not isinstance(opening, dict) or value.keys() - _MEMBERS:
        raise ValueError("an opening that is none, or an unknown member")
    return KeptReceipt(value["envelope"], value.get("cwt"), opening, answer, request_id, value.get("auditor"))


def unsealed(taken: KeptReceipt, private: X25519PrivateKey) -> KeptReceipt:
    """Return a receipt with the opening that is sealed to the auditor, in place of its client's.
    Raises NoteError if it has none, or for another key. It is still to be verified."""
    if taken.sealed is None:
        raise NoteError("receipt: it has no opening for an auditor",
                        hint="it is there where the policy has an auditor_key and keeps tokens from clients")
    request_id = envelopes.statement(envelopes.parts(taken.envelope)[0]).request.id
    return replace(taken, opening=envelopes.opening(taken.sealed, private, request_id))


def verify(taken: KeptReceipt, expected: ReceiptDemands, *, request: bytes | None = None,
           proof: bytes | None = None) -> tuple[Receipt, list[str]]:
    """Verify a receipt. Returns the statement, and the checks that were made. `proof`: a bundle
    with the answer's record. Raises NoteError for the first fault."""
    receipt = envelopes.statement(envelopes.payload(taken.envelope, expected.key))
    if envelopes.key_id(taken.envelope) != NoteKey(receipt.origin, expected.key).id.hex():
        raise NoteError("receipt: its envelope names another key")
    if taken.request_id not in (None, receipt.request.id):
        raise NoteError("receipt: it is another request's than the stream says")
    checked = ["signature"]
    if taken.token is not None:
        _token(taken.token, receipt, expected.key)
        checked.append("token")
    if receipt.checkpoint is not None:
        _logged(receipt, expected.key)
        checked.append("record under the checkpoint")
    if proof is not None:
        _proved(receipt, expected.key, proof)
        checked.append("record under the bundle's checkpoint")
    salts = _salts(taken.opening)
    for what, content, digest in (("answer", taken.answer, receipt.answer.digest),
                                  ("request", request, receipt.request.digest)):
        if content is not None:
            _require(what, salts, content, digest)
            checked.append(what)
    if "tokens" in taken.opening:
        _tokens(taken.opening, salts, receipt)
        checked += ["tokens", "settings"]
    return receipt, checked + _expectations(receipt, expected)


def _token(text: str, receipt: Receipt, key: bytes) -> None:
    try:
        raw = strict.base64url(text)
    except (ValueError, AttributeError):
        raise NoteError("receipt: its token is not in form") from None
    if envelopes.token(raw, key) != receipt:
        raise NoteError("receipt: its token is another receipt's")


def _logged(receipt: Receipt, key: bytes) -> None:
    place = receipt.record
    here, _ = reading.signed_head((receipt.checkpoint or "").encode(), NoteKey(origin(bytes.fromhex(place.log)), key))
    path, seq = [bytes.fromhex(each) for each in receipt.path or ()], place.seq or 0
    if not tree.included(bytes.fromhex(place.leaf), seq, here.size, path, here.root):
        raise NoteError(f"receipt: record {seq} is not under its checkpoint")


def _proved(receipt: Receipt, key: bytes, proof: bytes) -> None:
    """Require the answer's record in a bundle of its log, under a checkpoint that the key signed.
    """
    place = receipt.record
    found = bundle.read(proof, NoteKey(origin(bytes.fromhex(place.log)), key), Reader())
    if not any(record.leaf.hex() == place.leaf and place.seq in (None, seq) for seq, record in found.records.items()):
        raise NoteError("receipt: the bundle has other records than its own",
                        hint="appliance audit export LOG --receipt ANSWER makes it")


def _salts(opening: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the salts of an opening that has the members of one, and no others."""
    try:
        if _OPENINGS.get(frozenset(opening)) != frozenset(opening.get("salts", {})):
            raise ValueError("other members")
        found = {name: bytes.fromhex(text) for name, text in opening.get("salts", {}).items()}
        if {name: salt.hex() for name, salt in found.items()} != opening.get("salts", {}):
            raise ValueError("another spelling")
        return found
    except (ValueError, TypeError, AttributeError):
        raise NoteError("receipt: its opening is not in form") from None


def _require(what: str, salts: Mapping[str, bytes], content: bytes, digest: str) -> None:
    if what not in salts:
        raise NoteError(f"receipt: its opening has no salt of the {what}", hint="keep the answer as it came")
    if not hmac.compare_digest(hashlib.sha256(salts[what] + content).hexdigest(), digest):
        raise NoteError(f"receipt: the {what} is not the one that it is about")


def _tokens(opening: Mapping[str, Any], salts: Mapping[str, bytes], receipt: Receipt) -> None:
    try:
        prompt, chosen = tokens(opening)
        _require("tokens", salts, token_bytes(prompt, chosen), receipt.tokens.digest)
        found = statement.settings_digest(salts["settings"], {
            name: opening[name] for name in (*SETTINGS, *({ENDS} & opening.keys()))})
    except (ValueError, LookupError, TypeError, OverflowError, AttributeError):
        raise NoteError("receipt: its opening is not in form") from None
    if found.hex() != receipt.sampling.digest:
        raise NoteError("receipt: the settings are not those that it is about")


def tokens(opening: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    """Prompt and answer of an opening, with the token that ended it."""
    ending = opening["ending"]
    return list(opening["prompt_tokens"]), [*opening["tokens"], *([] if ending is None else [ending])]


def _expectations(receipt: Receipt, expected: ReceiptDemands) -> list[str]:
    image, checked = receipt.image, []
    for what, found, wanted in (("policy", receipt.policy_sha384, expected.policy_sha384),
                                ("self-test", image.self_test_sha384, expected.self_test_sha384),
                                ("measurement", image.measurement, expected.measurement),
                                ("code", image.code_sha384, expected.code_sha384)):
        if wanted is not None:
            if found != wanted:
                raise NoteError(f"receipt: its {what} is {found}, expected {wanted}")
            checked.append(what)
    if expected.policy is not None:
        _model(receipt, expected.policy)
        checked.append("model")
    return checked


def _model(receipt: Receipt, policy: Policy) -> None:
    said = receipt.model
    model = next((each for each in policy.models if each.name == said.name), None)
    if model is None or (model.sha256, model.sealed_header_sha256) != (said.sha256, said.sealed_header_sha256):
        raise NoteError(f"receipt: the model {said.name} is not as the policy pins it")
    by = model.publisher
    if (said.publisher, said.publisher_identity) != ((None, None) if by is None else (by.public_key, by.identity)):
        raise NoteError(f"receipt: the publisher of {said.name} is not the policy's")


def as_json(receipt: Receipt) -> dict[str, Any]:
    """Return the statement's members."""
    found: dict[str, Any] = json.loads(receipt.encode())
    return found
