"""Fuzz target: what a stranger's server or file can say to the client. No verdict but a bad one comes of it, and no
error but ours."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from datetime import timedelta
from pathlib import Path

from appliance.attestation.trust.roots import Roots
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.client import Verdict, Verifier, certificate, ear, target
from appliance.client.connection import spki_sha256
from appliance.client.verdict import VERIFIED
from appliance.codec import jws
from appliance.errors import AttestationError, PolicyError
from appliance.policy import load
from appliance.policy.digest import host_data
from appliance.signed import approvals
from tests.support import fake_appliance as fake
from tests.support.fake_amd import NOW, FakeAmd

AMD, NONCE, SPKI = FakeAmd("Genoa"), bytes(range(32)), bytes(32)
KEY = fake.key()


@functools.cache
def _genuine() -> tuple[Verifier, bytes, bytes]:
    """A verifier, evidence that it verifies, and the canonical form of the statement in it."""
    with tempfile.TemporaryDirectory() as folder:
        path = fake.write_policy(Path(folder), "sev-snp")
        policy = load(path)
        made = fake.attestor(fake.SnpSource(AMD, host_data(policy.digest)), policy, spki_sha256=SPKI).attest(NONCE)
        verifier = fake.verifier(path, roots=Roots(amd=AMD.roots), collateral=Collateral(crls=[AMD.crl()]))
    return verifier, made.to_json(), made.to_json()


def _judge(data: bytes) -> Verdict:
    verifier, _, _ = _genuine()
    return verifier.verify_evidence(data, nonce=NONCE, spki_sha256=SPKI)


def fuzz(data: bytes) -> None:
    """Read `data` as everything that comes from outside."""
    verdict = _judge(data)
    str(verdict)
    ear.claims(verdict)
    if verdict.status == VERIFIED and verdict.statement != _judge(_genuine()[1]).statement:
        raise AssertionError(f"verified what nobody signed: {verdict}")
    text = data.decode("latin-1")
    with contextlib.suppress(PolicyError):
        approvals.parse(data)
    with contextlib.suppress(PolicyError):
        target.endpoint(text[:4096])
    with contextlib.suppress(AttestationError):
        jws.verify(text, KEY.public_key())
    with contextlib.suppress(AttestationError):
        spki_sha256(data)
    with contextlib.suppress(AttestationError):
        certificate.check(data, at=NOW + timedelta(minutes=1))


def seeds() -> list[bytes]:
    """Genuine evidence, a token, approvals, a certificate, URLs."""
    return [_genuine()[1], jws.sign(b"{}", KEY).encode(), fake.certificate(KEY), b"https://a.example:8443/v1",
            approvals.Approvals(policy_sha384="00" * 48, approvals=(
                approvals.Approval(approver="a", signature="ed25519:" + "00" * 64),)).to_json()]
