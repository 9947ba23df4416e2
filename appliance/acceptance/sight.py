"""The sight of a machine on one connection, kept so that anybody may judge it again.

A sight holds all that the client's verdict depends on beside its reference: the nonce, the time,
the certificate of the TLS handshake, the session's exporter, and the answer.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from appliance.client import Verdict, Verifier, target
from appliance.client.connection import Connection, connect, spki_sha256
from appliance.client.verifier import NONCE_BYTES
from appliance.codec import strict
from appliance.codec.canonical import canonical
from appliance.errors import AttestationError, UncheckedEvidenceError

EVIDENCE, CERTIFICATE, QUESTION = "evidence.json", "certificate.der", "question.json"
_TIME = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True)
class Sight:
    """One question and its answer. `certificate` and `session` are None without TLS."""

    url: str
    at: datetime
    nonce: bytes
    certificate: bytes | None
    session: bytes | None
    evidence: bytes

    def verdict(self, verifier: Verifier) -> Verdict:
        """Judge the sight as `appliance verify` judges a connection."""
        return verifier.verify_connection(_Replay(self), nonce=self.nonce, at=self.at)

    def members(self, place: str) -> dict[str, bytes]:
        """Return the files of a bundle that hold it."""
        question = {"at": f"{self.at:{_TIME}}", "nonce": self.nonce.hex(), "url": self.url,
                    "session": None if self.session is None else self.session.hex()}
        found = {QUESTION: canonical(question), EVIDENCE: self.evidence}
        if self.certificate is not None:
            found[CERTIFICATE] = self.certificate
        return {f"{place}/{name}": data for name, data in found.items()}


def ask(url: str, nonce: bytes | None = None) -> Sight:
    """Ask an appliance for evidence. Raises AttestationError if none comes."""
    nonce = secrets.token_bytes(NONCE_BYTES) if nonce is None else nonce
    with connect(target.endpoint(url)) as connection:
        session, answer = connection.exporter(nonce), connection.evidence(nonce)
        return Sight(url, datetime.now(UTC).replace(microsecond=0), nonce, connection.certificate, session, answer)


def read(members: Mapping[str, bytes], place: str) -> Sight:
    """Return the sight in a bundle's files. Raises ValueError if the question is not in form."""
    value = strict.json_value(members[f"{place}/{QUESTION}"])
    if not isinstance(value, dict) or set(value) != {"at", "nonce", "session", "url"}:
        raise ValueError("not the fields of a question")
    at = datetime.strptime(str(value["at"]), _TIME).replace(tzinfo=UTC)
    session = None if value["session"] is None else bytes.fromhex(str(value["session"]))
    return Sight(str(value["url"]), at, bytes.fromhex(str(value["nonce"])), members.get(f"{place}/{CERTIFICATE}"),
                 session, members[f"{place}/{EVIDENCE}"])


class _Replay(Connection):
    """A connection on which what was seen is seen again."""

    def __init__(self, sight: Sight) -> None:
        self.endpoint, self.certificate = target.endpoint(sight.url), sight.certificate
        self._sight = sight
        try:
            self.spki_sha256 = None if sight.certificate is None else spki_sha256(sight.certificate)
        except AttestationError:  # the judge of the certificate says what is wrong with it
            self.spki_sha256 = hashlib.sha256(sight.certificate or b"").digest()

    def exporter(self, nonce: bytes) -> bytes | None:
        """Return the session's value for the nonce of that time."""
        return self._sight.session

    def evidence(self, nonce: bytes) -> bytes:
        """Return the answer of that time."""
        return self._sight.evidence

    def get(self, path: str, most: int, code: str) -> tuple[int, bytes]:
        """Refuse: nobody is there whom a TPM's challenge would reach."""
        raise UncheckedEvidenceError("a machine that is not there any more cannot be challenged", code=code)

