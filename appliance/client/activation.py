"""Ask an appliance's TPM whether it holds both keys: one that its maker certified, and the one that
quotes.

The challenge goes over the connection at hand, but what it shows is not about the connection: that
the quoting key is in that TPM. Whose connection it is, and when, is told by the evidence that this
key signs. The protocol: docs/formats/tpm-activation.md
"""

from __future__ import annotations

import json
from datetime import datetime

from appliance.attestation.case.terms import ChallengeOutcome
from appliance.attestation.tpm import credential
from appliance.attestation.tpm.judging import ek, protection, validate
from appliance.attestation.tpm.judging.verify import TpmClaims
from appliance.client.connection import Connection
from appliance.client.judge import Verification
from appliance.client.reference import Reference
from appliance.codec import strict
from appliance.errors import AttestationError, ForgedEvidenceError, MalformedEvidenceError, UncheckedEvidenceError

PATH = "/v1/attestation/activation?challenge="
MAX_ANSWER_BYTES = 1024
_REFUSED, _ABSENT = 400, 404


def ask(connection: Connection, found: Verification, reference: Reference, at: datetime) -> ChallengeOutcome | None:
    """Challenge the TPM that this evidence is of; None unless it is authentic evidence of a TPM,
    and the reference names roots of TPM makers.

    Raises ForgedEvidenceError `tpm-activation` if the TPM does not hold both keys, or as
    `ek.check` does; UncheckedEvidenceError `no-activation` if no answer comes.
    """
    if reference.ek_roots is None:
        return None
    try:
        claims = found.claims().hardware
    except AttestationError:
        return None  # the judge says why
    if not isinstance(claims, TpmClaims):
        return None
    certificate, name = validate.endorsed(claims)
    endorsement = ek.check(certificate, reference.ek_roots, claims.others, at=at)
    challenge = protection.new(endorsement.key, name)
    status, body = connection.get(PATH + strict.to_base64url(challenge.sent), MAX_ANSWER_BYTES, "no-activation")
    if not challenge.holds(_answer(connection, status, body)):
        raise ForgedEvidenceError("activation: the answer is not by the TPM of the EK certificate",
                                  code="tpm-activation")
    return ChallengeOutcome(name, certificate)


def _answer(connection: Connection, status: int, body: bytes) -> bytes:
    """The 32 bytes in an answer that has the form of one."""
    if status == _REFUSED:
        raise ForgedEvidenceError(
            "activation: the machine's TPM does not open the challenge: the endorsement key of the certificate is not "
            "in it, or the attestation key is not", code="tpm-activation")
    if status != 200:
        raise UncheckedEvidenceError(
            f"{connection.endpoint}: no answer to a challenge: HTTP status {status}", code="no-activation",
            hint="an appliance of an older version has no such endpoint" if status == _ABSENT else None)
    try:
        value = json.loads(body)
        known = isinstance(value, dict) and set(value) == {"format", "answer"}
        if not known or value["format"] != credential.FORMAT:
            raise ValueError("another format")
        found = bytes.fromhex(value["answer"])
    except (ValueError, TypeError, RecursionError):
        found = b""
    if len(found) != credential.ANSWER_BYTES:
        raise MalformedEvidenceError("activation: the answer is not in form")
    return found
