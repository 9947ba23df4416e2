"""The verifier: a URL, a connection or a file of evidence to a verdict.

    verifier = Verifier.from_files("deployment.hcl", "measurements.json", builder_key="ed25519:…")
    verdict = verifier.verify("https://10.0.0.7:8443")
    print(verdict)            # what was proved, what was not
    verdict.require()         # raises unless verified

A verifier may be used from several threads.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Unpack

from appliance.attestation.case import certified
from appliance.attestation.findings import Finding
from appliance.attestation.judge import collateral_folder, recognise
from appliance.attestation.x509.judging import dice
from appliance.client import activation, certificate, judge, reference, seen, target
from appliance.client.connection import Connection, connect
from appliance.client.judge import Question
from appliance.client.reference import Options, Reference
from appliance.client.verdict import Verdict
from appliance.errors import AttestationError, UncheckedEvidenceError
from appliance.policy import inputfile

NONCE_BYTES = 32
MAX_FILE_BYTES = 1 << 24


def now() -> datetime:
    """The verifier's own clock: certificates and collateral are judged by it."""
    return datetime.now(UTC)


class Verifier:
    """Judges appliances by a reference: policy, measurements, approvals, collateral."""

    def __init__(self, known: Reference, *, clock: Callable[[], datetime] = now) -> None:
        self.reference = known
        self._clock = clock

    @classmethod
    def from_files(cls, policy: str | Path, measurements: str | Path | None = None,
                   **options: Unpack[Options]) -> Verifier:
        """A verifier by files; `options` are those of `reference.Options`. Raises PolicyError if a
        file cannot be used, ForgedEvidenceError if the measurements are not the builder's,
        TypeError for an option that there is not."""
        if unknown := options.keys() - Options.__annotations__.keys():  # one that is misspelt must not be passed over
            raise TypeError(f"no option {', '.join(sorted(unknown))}; there are {', '.join(Options.__annotations__)}")
        measured = None if measurements is None else Path(measurements)
        return cls(reference.read(Path(policy), measured, options))

    def verify(self, url: str, *, nonce: bytes | None = None, at: datetime | None = None) -> Verdict:
        """The verdict on the appliance at a URL, by evidence made for a nonce chosen now. `nonce`:
        somebody else's, who will judge the evidence by it. Raises PolicyError for a text that is no
        URL of an appliance; all else is in the verdict."""
        endpoint = target.endpoint(url)
        try:
            connection = connect(endpoint)
        except AttestationError as error:
            return judge.failed(error, self.reference, Question(str(endpoint), at or self._clock()))
        with connection:
            return self.verify_connection(connection, nonce=nonce, at=at)

    def verify_connection(self, connection: Connection, *, nonce: bytes | None = None,
                          at: datetime | None = None) -> Verdict:
        """The verdict on whoever answers on this connection. Nothing but a nonce is sent: a new one
        without `nonce`."""
        nonce = secrets.token_bytes(NONCE_BYTES) if nonce is None else nonce
        question = Question(str(connection.endpoint), at or self._clock(), nonce, connection.spki_sha256,
                            connection.exporter(nonce), online=True)
        known = self.reference
        answer: bytes | None = None
        try:
            known = seen.joined(known, question.target)
            question = replace(question, seen=tuple(self._channel(connection, question, known)))
        except UncheckedEvidenceError as error:  # what it lacks comes with the evidence, or is fetched by that
            with suppress(AttestationError):
                answer = connection.evidence(nonce)
            question, still = self._with_answer(connection, question, known, answer, error)
            if still is not None:
                return judge.failed(still, known, question, answer)
        except AttestationError as error:
            return judge.failed(error, known, question)
        try:
            answer = connection.evidence(nonce) if answer is None else answer
            found = judge.verified(answer, known, question.at)
            question = replace(question, activated=activation.ask(connection, found, known, question.at))
        except AttestationError as error:
            return judge.failed(error, known, question, answer)
        return seen.keep(self.reference, judge.conclude(found, known, question))

    def _with_answer(self, connection: Connection, question: Question, known: Reference, answer: bytes | None,
                     lacking: UncheckedEvidenceError) -> tuple[Question, AttestationError | None]:
        """Verify what the handshake shows by collateral that came with the evidence: a certificate
        has no room for the host's documents. Returns the question, and the error that is left."""
        more = seen.stapled(known, answer)
        if more is None:
            return question, lacking
        try:
            return replace(question, seen=tuple(self._channel(connection, question, more))), None
        except UncheckedEvidenceError:
            return question, lacking
        except AttestationError as error:
            return question, error

    def _channel(self, connection: Connection, question: Question, known: Reference) -> list[Finding]:
        """Verify what the handshake alone shows."""
        if connection.certificate is None:
            return [Finding("channel", "not checked", "plain HTTP on the loopback: nothing binds it to the evidence")]
        foreign = any(listener.kind == "tls" for listener in known.policy.policy.service.listeners)
        found = [certificate.check(connection.certificate, at=question.at, foreign=foreign)]
        if not certified.is_ours(connection.certificate):
            return [*found, Finding("certificate-evidence", "not checked", "none in it")]
        carried = certified.parse(connection.certificate)
        return [*found, judge.certificate_evidence(carried, known, question.at)]

    def verify_evidence(self, data: bytes, *, nonce: bytes | None = None, spki_sha256: bytes | None = None,
                        at: datetime | None = None, name: str = "evidence") -> Verdict:
        """The verdict on evidence in JSON that came from elsewhere. Without `nonce` nothing shows
        when it was made, and without `spki_sha256` nothing whose connection it is about."""
        return judge.judge(data, self.reference, Question(name, at or self._clock(), nonce, spki_sha256))

    def verify_certificate(self, data: bytes, *, nonce: bytes | None = None, at: datetime | None = None,
                           name: str = "certificate") -> Verdict:
        """The verdict on an RA-TLS certificate (DER or PEM) by itself: who has its key, but not
        when, nor whether it is still so. `nonce`, if given, is not one that a certificate can
        answer, and fails."""
        question = Question(name, at or self._clock(), nonce)
        try:
            found = certificate.check(dice.to_der(data), at=question.at)
            carried = certified.parse(data)
        except AttestationError as error:
            return judge.failed(error, self.reference, question, data)
        own = replace(question, nonce=nonce or carried.nonce, spki_sha256=carried.spki_sha256, seen=(found, Finding(
            "certificate-evidence", "holds", "fresh it is not: a certificate lives for a while")))
        return judge.judge(carried.evidence.to_json(), self.reference, own)

    def verify_file(self, path: Path, *, nonce: bytes | None = None, at: datetime | None = None) -> Verdict:
        """The verdict on a file: evidence in JSON, or an RA-TLS certificate. Certificates and so on
        beside it serve as collateral too. Raises UncheckedEvidenceError if the file cannot be read.
        """
        try:
            data = inputfile.read(path, MAX_FILE_BYTES)
        except OSError as error:
            raise UncheckedEvidenceError(f"{path} cannot be read: {error.strerror}", code="file-unreadable") from None
        found = collateral_folder.load(path.parent)
        beside = Verifier(replace(self.reference, collateral=found.joined(self.reference.collateral)),
                          clock=self._clock)
        if certified.is_ours(data):
            return beside.verify_certificate(data, nonce=nonce, at=at, name=str(path))
        kind = recognise.recognise(data)
        if kind not in (recognise.APPLIANCE, None):
            return judge.failed(UncheckedEvidenceError(
                f"{kind}: bound to no statement, so no policy can be checked by it", code="no-statement",
                hint=f"appliance evidence {path} tells whether it is genuine"), self.reference,
                Question(str(path), at or self._clock()))
        return beside.verify_evidence(data, nonce=nonce, at=at, name=str(path))
