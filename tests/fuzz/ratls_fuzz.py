"""Fuzz target: RA-TLS certificates and TPM evidence containers from strangers. The first byte says which of the two."""

from __future__ import annotations

import datetime as dt
import functools
import hashlib

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from appliance.attestation import binding
from appliance.attestation.case import certified
from appliance.attestation.collect import ratls
from appliance.attestation.collect.attestor import Attestor, BoundFacts, BoundKey
from appliance.attestation.simulated.collecting.collector import SimulatedProvider
from appliance.attestation.tpm import container
from appliance.attestation.tpm.judging import origin as tpm_origin
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.errors import AttestationError
from tests.support import fake_tpm

DATA = bytes(range(64))
NOW = fake_tpm.NOW


@functools.cache
def _certificate() -> bytes:
    attestor = Attestor(SimulatedProvider(bytes(32)), BoundFacts(bytes(48), bytes(48), binding.Build(version="1")))
    key = ec.generate_private_key(ec.SECP256R1())
    public = ratls.spki(key.public_key())
    nonce = ratls.nonce_for(public)

    channel = BoundKey(hashlib.sha256(public).digest())
    attestor.bind_tls_key(channel.tls_spki_sha256)
    evidence, = attestor.attest_all([nonce], channel)
    made = ratls.issue(key, evidence, ("a.example",), not_before=NOW, not_after=NOW + dt.timedelta(days=1))
    return made.public_bytes(Encoding.DER)


@functools.cache
def _container() -> bytes:
    message = fake_tpm.quote(nonce=container.qualifying_data(DATA))
    return container.TpmEvidence(
        message, fake_tpm.sign(message), fake_tpm.public(), b"".join(fake_tpm.PCRS.values()),
        fake_tpm.event_log([(9, 1, b"kernel")])).to_bytes()


def fuzz(data: bytes) -> None:
    """Parse a certificate, or verify a container."""
    try:
        if data[:1] == b"\0":
            if certified.parse(data[1:]) != certified.parse(_certificate()):
                raise AssertionError("another certificate holds")
            return
        claims = tpm_origin.verify(data[1:], DATA, Collateral(), at=NOW)
    except AttestationError:
        return
    if claims.pcrs["sha256"] != fake_tpm.PCRS:
        raise AssertionError("verified what nobody signed")


def seeds() -> list[bytes]:
    """One of each, and the certificate in PEM."""
    return [b"\0" + _certificate(), b"\1" + _container()]
