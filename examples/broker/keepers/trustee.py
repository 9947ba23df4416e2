"""Model keys at the key broker service (KBS) of Trustee, for a broker in a confidential VM.

    POST /kbs/v0/auth, POST /kbs/v0/attest, GET /kbs/v0/resource/REPOSITORY/TYPE/TAG

The messages are those of the KBS attestation protocol, as an appliance says them to this broker.
The evidence is another: of the machine of this broker, in the form that Trustee's verifiers read.
The attestation agent beside the broker collects it over SHA-384 of

    {"additional-evidence":"","nonce":"…","tee-pubkey":{…}}

in canonical JSON (RFC 8785). In a pod of Confidential Containers the data hub beside the broker can
do all of this: then the broker only asks it, by GET /cdh/resource/REPOSITORY/TYPE/TAG.

Sources: confidential-containers/trustee, kbs/docs/kbs_attestation_protocol.md;
confidential-containers/guest-components, api-server-rest/README.md.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import re
from dataclasses import dataclass
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric import ec

from appliance.codec import jwe
from appliance.codec.canonical import canonical
from appliance.codec.printable import plain
from appliance.codec.strict import to_base64url
from appliance.errors import ModelKeyError
from appliance.keys import document
from appliance.keys.providers import Secret
from appliance.keys.release.https import HttpAnswer
from appliance.keys.release.kbs import Handshake
from appliance.secure.locked import SecretBytes
from appliance.secure.wipe import wipe
from examples.broker.keepers.outward import MAX_ANSWER_BYTES, Service

_NAME = "[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"
RESOURCE = re.compile(f"{_NAME}/{_NAME}/{_NAME}")  # repository, type, tag
TEE = re.compile(r"[a-z0-9-]{1,32}")
MAX_WORDS = 300
MAX_EVIDENCE_BYTES = 1 << 20  # with the event log of the firmware
_HINTS = {
    "key-denied": "its log says why: the attestation policy must accept this machine's evidence, and the resource "
                  "policy must release the key to it",
    "key-absent": "compare kept_as with the resources of the KBS",
    "key-broker-answer": "it must speak version 0.4.0 of the protocol, and encrypt to a key on P-256 by ECDH-ES+A256KW",
}


def kept(where: object, what: str, hint: str) -> ModelKeyError:
    """The error about a key that a keeper does not hand over."""
    return ModelKeyError(f"{where}: {what}", code="key-kept", hint=hint)


def report_data(nonce: bytes, key: ec.EllipticCurvePublicKey) -> bytes:
    """The 48 bytes that evidence binds: a digest of the nonce and the key that is attested."""
    bound = {"additional-evidence": "", "nonce": base64.b64encode(nonce).decode(), "tee-pubkey": jwe.public_jwk(key)}
    return hashlib.sha384(canonical(bound)).digest()


@dataclass(frozen=True)
class _Channel:
    """A way to the KBS, as the handshake takes one. A session is a cookie, so that each request may
    go on a connection of its own."""

    service: Service

    @property
    def address(self) -> str:
        return self.service.url

    def request(self, method: str, path: str, body: bytes | None = None, cookie: str | None = None) -> HttpAnswer:
        headers = {"accept": "application/json", "content-type": "application/json",
                   **({} if cookie is None else {"cookie": cookie})}
        found = _asked(self.service, method, path, headers, body,
                       "is it running, and does its certificate lead to `ca`?")
        return HttpAnswer(found.status, found.body, found.cookies)


def _asked(service: Service, method: str, path: str, headers: dict[str, str], body: bytes | None,
           hint: str, most: int = MAX_ANSWER_BYTES) -> HttpAnswer:
    try:
        found = service.ask(method, path, headers, body, most=most)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise kept(service.url, plain(str(error), MAX_WORDS), hint) from None
    return HttpAnswer(found.status, found.body, found.cookies)


class Keeper(Protocol):
    """A place that keeps keys, as this broker reaches it."""

    @property
    def place(self) -> str:
        """Its address, for errors."""
        ...

    def fetch(self, resource: str) -> bytearray:
        """Return a resource, for the caller to wipe. ModelKeyError."""
        ...


@dataclass(frozen=True)
class DataHub:
    """The data hub of a pod, which attests to the KBS that its own settings name. The answer passes
    through bytes of Python, which cannot be overwritten."""

    agent: Service

    @property
    def place(self) -> str:
        """The address that is asked."""
        return self.agent.url

    def fetch(self, resource: str) -> bytearray:
        """Have the data hub fetch it."""
        return SecretBytes(_local(self.agent, f"/cdh/resource/{resource}"))


@dataclass(frozen=True)
class Trustee:
    """A KBS, and the agent that collects evidence of the machine on which this broker runs."""

    kbs: Service
    agent: Service

    @property
    def place(self) -> str:
        """The address that is asked."""
        return self.kbs.url

    def fetch(self, resource: str) -> bytearray:
        """Attest, and return a resource, for the caller to wipe. ModelKeyError."""
        session = Handshake(_Channel(self.kbs), self._tee())
        try:
            nonce = session.challenge()
            session.attest(self._evidence(report_data(nonce, session.release_key)))
            return session.resource(resource)
        except ModelKeyError as error:
            if error.code not in _HINTS:
                raise
            raise kept("Trustee", error.summary, _HINTS[error.code]) from None

    def _tee(self) -> str:
        """The name of the platform, as the agent has it."""
        found = self._object(_local(self.agent, "/info"), "/info").get("tee")
        if not isinstance(found, str) or TEE.fullmatch(found) is None:
            raise kept(self.agent.url, "/info names no platform", "the agent must be api-server-rest of Confidential "
                       "Containers' guest components")
        return found

    def _evidence(self, data: bytes) -> bytes:
        """Evidence over the bytes, a JSON object in the form of the agent's platform."""
        path = f"/aa/evidence?encoding=base64&runtime_data={to_base64url(data)}"
        found = _local(self.agent, path)
        self._object(found, "/aa/evidence")
        return found

    def _object(self, data: bytes, what: str) -> dict[str, object]:
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise kept(self.agent.url, f"{what} is not a JSON object", "the agent must be api-server-rest of "
                       "Confidential Containers' guest components")
        return found


def _local(agent: Service, path: str) -> bytes:
    """The body of an answer by what runs beside the broker."""
    hint = "start api-server-rest of Confidential Containers' guest components beside the broker: --features=all"
    found = _asked(agent, "GET", path, {"accept": "application/json"}, None, hint, MAX_EVIDENCE_BYTES)
    if found.status != 200:
        raise kept(agent.url, f"HTTP status {found.status} for {path.partition('?')[0]}: "
                   f"{plain(found.body.decode('utf-8', 'replace'), MAX_WORDS)}", hint)
    return found.body


@dataclass(frozen=True)
class KeptKey:
    """A provider of a key that Trustee keeps: a key document, or a bare key."""

    keeper: Keeper
    resource: str
    version: int

    def key(self) -> Secret:
        """Fetch it. ModelKeyError where it cannot be had, or has another version."""
        text = self.keeper.fetch(self.resource)
        try:
            return Secret(document.accept(text, f"{self.keeper.place}: {self.resource}", self.version, bare=True))
        finally:
            wipe(text)
