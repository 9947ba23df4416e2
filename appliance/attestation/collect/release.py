"""Evidence for a key broker: the `key-release/v1` statement over its nonce and the release key.

It is made before any model is unlocked, so it names no models and no TLS key: policy, self-test and
build decide.
"""

from __future__ import annotations

from dataclasses import dataclass

from appliance.attestation import evidence
from appliance.attestation.binding import Build, KeyReleaseStatement, Nonces, report_data


@dataclass(frozen=True)
class ReleaseAttestor:
    """The statement to a broker about this boot; digests are raw bytes."""

    provider: evidence.Provider
    policy_sha384: bytes
    self_test_sha384: bytes
    build: Build

    def attest(self, nonce: bytes, release_spki_sha256: bytes) -> evidence.Evidence:
        """Evidence that whoever holds the release key is this boot.

        Raises MalformedEvidenceError unless the nonce has 16 to 64 bytes, AttestationError without
        a report.
        """
        statement = KeyReleaseStatement(
            nonces=Nonces.over([nonce]), policy_sha384=self.policy_sha384.hex(),
            self_test_sha384=self.self_test_sha384.hex(), release_spki_sha256=release_spki_sha256.hex(),
            build=self.build)
        collected = self.provider.collect(report_data(statement))
        proof = evidence.NonceProof(nonce=nonce.hex(), index=0, path=())
        return evidence.make(self.provider, collected.report, statement, proof, collected.collateral)
