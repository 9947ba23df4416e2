"""The attestor: holds what the running appliance is, answers nonces with evidence.

It lives as long as the service. Loading or swapping a model starts a new generation, and so does a
new TLS key; evidence made before either then shows an older generation and cannot be mistaken for
the present state.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from appliance.attestation import evidence, merkle
from appliance.attestation.binding import (
    Build,
    LoadedModel,
    Nonces,
    ServeStatement,
    check_nonce,
    leaf,
    parse_nonce,
    report_data,
)
from appliance.attestation.collect.halves import COLLECTORS
from appliance.errors import AttestationError


@dataclass(frozen=True)
class BoundFacts:
    """The bound facts of one generation; digests are raw bytes."""

    policy_sha384: bytes
    self_test_sha384: bytes
    build: Build
    generation: int = 0
    models: tuple[LoadedModel, ...] = ()
    tls_spki_sha256: bytes | None = None
    audit_key_ed25519: bytes | None = None


@dataclass(frozen=True)
class BoundKey:
    """The connection that evidence is given on: SHA-256 of its TLS key's SubjectPublicKeyInfo, None
    without TLS."""

    tls_spki_sha256: bytes | None


class Attestor:
    """Makes evidence about `state` through a provider; safe to call from several threads."""

    def __init__(self, provider: evidence.Provider, state: BoundFacts) -> None:
        self._provider = provider
        self._state = state
        self._bound: set[bytes | None] = {None, state.tls_spki_sha256}
        self._lock = threading.Lock()

    @property
    def platform(self) -> str:
        """The provider's platform."""
        return self._provider.platform

    @property
    def state(self) -> BoundFacts:
        """The present generation."""
        return self._state

    def new_generation(self, models: Iterable[LoadedModel]) -> int:
        """Replace the set of loaded models and return the new generation's number."""
        ordered = tuple(sorted(models, key=lambda model: model.name))
        with self._lock:
            self._state = replace(self._state, models=ordered, generation=self._state.generation + 1)
            return self._state.generation

    def bind_tls_key(self, spki_sha256: bytes | None) -> int:
        """Bind the SHA-256 of the TLS key's SubjectPublicKeyInfo; returns the new generation's
        number.

        The last key is the state's; connections on earlier ones stay attestable as what they are
        (`BoundKey`) until the key is retired.
        """
        with self._lock:
            self._bound.add(spki_sha256)
            self._state = replace(
                self._state, tls_spki_sha256=spki_sha256, generation=self._state.generation + 1)
            return self._state.generation

    def retire(self, spki_sha256: bytes | None) -> None:
        """Make no more evidence of a TLS key: whoever got hold of it has no use of it any more."""
        with self._lock:
            if spki_sha256 != self._state.tls_spki_sha256:
                self._bound.discard(spki_sha256)

    def statement(self, nonces: Nonces, channel: BoundKey | None = None) -> ServeStatement:
        """The `serve/v1` statement about the present generation for this tree of nonces.

        `channel`: the connection that it is given on, by default one with the state's own TLS key.
        Raises AttestationError for a key that was never bound, or is retired.
        """
        state = self._state
        if channel is not None:
            if channel.tls_spki_sha256 not in self._bound:
                raise AttestationError("attestation: the TLS key of this connection is retired, or not the "
                                       "appliance's", code="tls-key-unknown", hint="open a new connection")
            state = replace(state, tls_spki_sha256=channel.tls_spki_sha256)

        def hexed(value: bytes | None) -> str | None:
            return None if value is None else value.hex()

        return ServeStatement(
            nonces=nonces, policy_sha384=state.policy_sha384.hex(),
            self_test_sha384=state.self_test_sha384.hex(), tls_spki_sha256=hexed(state.tls_spki_sha256),
            generation=state.generation, models=state.models,
            audit_key_ed25519=hexed(state.audit_key_ed25519), build=state.build)

    def measurement(self) -> bytes | None:
        """The launch measurement in a report of now; None where the platform's reports have none.
        Raises AttestationError."""
        read = COLLECTORS[self.platform].measurement
        return None if read is None else read(self._provider.collect(secrets.token_bytes(64)).report)

    def attest(self, nonce: bytes | str) -> evidence.Evidence:
        """Evidence for one nonce, raw or as text. Raises MalformedEvidenceError on a bad nonce."""
        raw = parse_nonce(nonce) if isinstance(nonce, str) else check_nonce(nonce)
        return self.attest_all([raw])[0]

    def attest_all(self, nonces: Sequence[bytes], channel: BoundKey | None = None,
                   sessions: Sequence[bytes | None] | None = None) -> list[evidence.Evidence]:
        """One report for 1 to 65,536 nonces asked on one key; each client's evidence has the proof
        of its own. `sessions`: for each nonce the exporter of its connection, or None where
        evidence is of the key alone."""
        sessions = sessions or [None] * len(nonces)
        key = self._state.tls_spki_sha256 if channel is None else channel.tls_spki_sha256
        tree = merkle.HashTree([leaf(nonce, key, session) for nonce, session in zip(nonces, sessions, strict=True)])
        statement = self.statement(Nonces.of(tree), channel)
        report, collateral = self._provider.collect(report_data(statement))
        proofs = [evidence.NonceProof(nonce=nonce.hex(), index=index, path=tuple(
            step.hex() for step in tree.proof(index))) for index, nonce in enumerate(nonces)]
        made = [evidence.make(self._provider, report, statement, proofs[0], collateral, session)
                for session in (None, bytes(32))]  # one text of the report for all of a kind
        return [made[0].model_copy(update={"proof": proof}) if session is None else
                made[1].model_copy(update={"proof": proof, "session": session.hex()})
                for proof, session in zip(proofs, sessions, strict=True)]

    def activate(self, challenge: bytes) -> bytes:
        """A TPM's answer to a challenge (docs/formats/tpm-activation.md). Raises
        MalformedEvidenceError, AttestationError when there is no TPM, or it does not open it."""
        return self._provider.activate(challenge)

    def close(self) -> None:
        """Let go of the platform's interfaces."""
        self._provider.close()
