"""The broker's protocol: request, challenge, attestation, response, as Confidential Containers' KBS
has it.

Messages and paths are those of the KBS attestation protocol (confidential-containers/trustee,
kbs/docs/kbs_attestation_protocol.md), version 0.4.0; the evidence is ours.
docs/formats/key-release.md specifies both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric import ec

from appliance.codec import brokerjson, jwe
from appliance.errors import ModelKeyError
from appliance.keys.release.https import HttpAnswer, printable
from appliance.platforms import PLATFORMS

VERSION = "0.4.0"
TEES: Mapping[str, str] = {each.name: each.kbs for each in PLATFORMS}  # ours -> KBS's
PARAMETER = "tpm-activation"
_COOKIE = re.compile(r"kbs-session-id=([A-Za-z0-9_.~+/=-]{1,256})(?:;.*)?")
_REFUSALS = {
    401: ("key-denied", "does not accept the evidence", "the broker's log says which rule failed; where the policy has "
          'session_binding = "required", the broker must know appliance/key-release/v2'),
    403: ("key-denied", "refuses", "the broker's log says which rule failed; it needs a rule for this very image and "
          "policy"),
    404: ("key-absent", "has no such key", "compare the policy's broker.resource with the broker's configuration"),
}


class BrokerChannel(Protocol):
    """A way to one broker."""

    @property
    def address(self) -> object:
        """The broker, for errors."""
        ...

    def request(self, method: str, path: str, body: bytes | None = None, cookie: str | None = None) -> HttpAnswer:
        """Ask once. ModelKeyError where no answer comes."""
        ...


class Handshake:
    """One handshake with one broker, for one release key."""

    def __init__(self, connection: BrokerChannel, tee: str, endorsement: Mapping[str, object] | None = None) -> None:
        """`tee`: the name in the protocol. `endorsement`: what a broker needs to challenge a TPM.
        """
        self._connection, self._tee, self._endorsement = connection, tee, endorsement
        self.activation = b""  # the broker's challenge to the TPM; empty if it made none
        self._key = jwe.new_key()
        self._cookie = self._nonce_text = ""

    @property
    def release_key(self) -> ec.EllipticCurvePublicKey:
        """The key that the broker is to encrypt to."""
        return self._key.public_key()

    def challenge(self) -> bytes:
        """Request and challenge: the broker's nonce, 16 to 64 bytes."""
        answer = self._post("/kbs/v0/auth", {"version": VERSION, "tee": self._tee, "extra-params":
                                               {PARAMETER: self._endorsement} if self._endorsement else ""})
        challenge = brokerjson.parse(answer.body, "challenge")
        nonce = challenge.get("nonce")
        if not isinstance(nonce, str):
            raise brokerjson.refuse("challenge: nonce is absent or no string")
        raw = brokerjson.base64_padded(nonce, "challenge nonce", range(16, 65))
        found = [match[1] for match in map(_COOKIE.fullmatch, answer.cookies) if match]
        if len(found) != 1:
            raise brokerjson.refuse("challenge: not exactly one cookie kbs-session-id")
        self._cookie, self._nonce_text = f"kbs-session-id={found[0]}", nonce
        self._take_activation(challenge.get("extra-params"))
        return raw

    def _take_activation(self, extra: object) -> None:
        """The broker's challenge to the TPM, if it makes one to an appliance that can take it."""
        if self._endorsement is None or not isinstance(extra, dict) or PARAMETER not in extra:
            return
        if not isinstance(extra[PARAMETER], str):
            raise brokerjson.refuse(f"challenge: {PARAMETER} is no string")
        self.activation = brokerjson.base64_padded(extra[PARAMETER], f"challenge, {PARAMETER}", range(1, 1025))

    def attest(self, evidence: bytes | bytearray, activated: bytes | bytearray = b"") -> None:
        """Attestation: evidence (JSON) that binds the nonce and the release key, and the TPM's
        answer if one was asked for. ModelKeyError if refused."""
        additional = json.dumps({PARAMETER: activated.hex()}) if activated else ""
        self._post("/kbs/v0/attest", {
            "runtime-data": {"nonce": self._nonce_text, "tee-pubkey": jwe.public_jwk(self.release_key)},
            "tee-evidence": {"primary_evidence": json.loads(evidence), "additional_evidence": additional}})

    def resource(self, name: str) -> bytearray:
        """Response: the broker's secret of this name, decrypted; the caller wipes it."""
        answer = self._connection.request("GET", f"/kbs/v0/resource/{name}", cookie=self._cookie)
        self._check(answer, f" to release {name}")
        return jwe.decrypt(answer.body, self._key)

    def _post(self, path: str, message: Mapping[str, object]) -> HttpAnswer:
        body = json.dumps(message, separators=(",", ":")).encode()
        answer = self._connection.request("POST", path, body, self._cookie or None)
        self._check(answer, "")
        return answer

    def _check(self, answer: HttpAnswer, what: str) -> None:
        """Anything but 200 ends the handshake, with the broker's own words where it has some."""
        if answer.status == 200:
            return
        where = f"the key broker at {self._connection.address}"
        if answer.status not in _REFUSALS:
            raise ModelKeyError(f"{where} answers with HTTP status {answer.status}{_said(answer)}",
                                code=brokerjson.CODE, hint="redirects are not followed; nothing but 200 will do")
        code, verb, hint = _REFUSALS[answer.status]
        raise ModelKeyError(f"{where} {verb}{what}{_said(answer)}", code=code, hint=hint)


def _said(answer: HttpAnswer) -> str:
    """The broker's explanation (ErrorInformation of the protocol), printable and cut; empty if it
    has none."""
    try:
        detail = brokerjson.parse(answer.body, "error").get("detail")
    except ModelKeyError:
        return ""
    return f": {printable(detail)}" if isinstance(detail, str) and detail else ""
