"""Fuzz target: evidence and nonces from strangers. Only attestation errors come out, and nothing false verifies."""

from __future__ import annotations

import contextlib
import functools
import hashlib

from appliance.attestation import binding
from appliance.attestation.case import reading
from appliance.attestation.collect.attestor import Attestor, BoundFacts
from appliance.attestation.judge.validate import Expectations, validate
from appliance.attestation.judge.verify import Claims, verify
from appliance.attestation.simulated.collecting.collector import SimulatedProvider
from appliance.errors import AttestationError
from appliance.policy.digest import host_data

POLICY, NONCE = hashlib.sha384(b"policy").digest(), bytes(range(32))
EXPECTED = Expectations(frozenset({"simulated"}), NONCE, POLICY)


@functools.cache
def _genuine() -> tuple[bytes, ...]:
    provider = SimulatedProvider(host_data(POLICY))
    attestor = Attestor(provider, BoundFacts(POLICY, POLICY, binding.Build(version="0.1.0")))
    attestor.new_generation([binding.LoadedModel(name=name, sha256="ab" * 32) for name in ("a", "b")])
    alone, batch = attestor.attest(NONCE), attestor.attest_all([bytes([i]) * 16 for i in range(3)])
    return tuple(made.to_json() for made in (alone, *batch))


@functools.cache
def _claims() -> tuple[Claims, ...]:
    return tuple(verify(reading.parse(made)) for made in _genuine())


def fuzz(data: bytes) -> None:
    """Read `data` as evidence and as a nonce; what verifies must be what was signed."""
    with contextlib.suppress(AttestationError):
        binding.parse_nonce(data[:200].decode("latin-1"))
    try:
        claims = verify(reading.parse(data))
    except AttestationError:
        return
    validate(claims, EXPECTED)
    if claims not in _claims():
        raise AssertionError(f"verified what nobody signed: {claims}")


def seeds() -> list[bytes]:
    """Genuine evidence, alone and of a batch, and pieces."""
    return [*_genuine(), b"{}", NONCE.hex().encode(), b'{"format":"appliance/evidence/v1"}']
