"""Evidence for a key broker: the `key-release` statement over its nonce and the release key, and in
version 2 over the TLS connection to the broker.

It is made before any model is unlocked, so it names no models and no TLS key of ours: policy,
self-test and build decide.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from appliance.attestation import evidence
from appliance.attestation.binding import (
    Build,
    KeyReleaseStatement,
    Nonces,
    SessionReleaseStatement,
    Statement,
    report_data,
)


class BrokerSession(NamedTuple):
    """A TLS connection to a broker: SHA-256 of the SubjectPublicKeyInfo that the broker shows, and
    the connection's exporter for the broker's nonce, 32 bytes each."""

    spki_sha256: bytes
    exporter: bytes


@dataclass(frozen=True)
class ReleaseAttestor:
    """The statement to a broker about this boot; digests are raw bytes."""

    provider: evidence.Provider
    policy_sha384: bytes
    self_test_sha384: bytes
    build: Build

    def attest(self, nonce: bytes, release_spki_sha256: bytes,
               session: BrokerSession | None = None) -> evidence.Evidence:
        """Evidence that whoever holds the release key is this boot, and with `session` that it
        talks to the broker on this very connection.

        Raises MalformedEvidenceError unless the nonce has 16 to 64 bytes, AttestationError without
        a report.
        """
        said = {"nonces": Nonces.over([nonce]), "policy_sha384": self.policy_sha384.hex(),
                "self_test_sha384": self.self_test_sha384.hex(), "release_spki_sha256": release_spki_sha256.hex(),
                "build": self.build}
        statement: Statement = KeyReleaseStatement.model_validate(said) if session is None else (
            SessionReleaseStatement.model_validate({
                **said, "broker_spki_sha256": session.spki_sha256.hex(), "session": session.exporter.hex()}))
        collected = self.provider.collect(report_data(statement))
        proof = evidence.NonceProof(nonce=nonce.hex(), index=0, path=())
        return evidence.make(self.provider, collected.report, statement, proof, collected.collateral)
