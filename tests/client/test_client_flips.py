"""One byte altered anywhere: never a good verdict, never an error that is not ours, and the right kind of refusal."""

from __future__ import annotations

import base64
import json
import random
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from appliance.attestation.trust.roots import Roots
from appliance.attestation.x509.judging import revocation
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.client import Verdict, Verifier, certificate
from appliance.client.connection import spki_sha256
from appliance.client.verdict import INVALID, NOT_MET, UNCHECKED, VERIFIED
from appliance.errors import (
    AttestationError,
    ForgedEvidenceError,
    MalformedEvidenceError,
    UncheckedEvidenceError,
)
from appliance.policy import load
from appliance.policy.digest import host_data
from tests.fuzz import client_fuzz, driver
from tests.support import extent
from tests.support import fake_appliance as fake
from tests.support.fake_amd import NOW, FakeAmd
from tests.support.fake_intel import FakeIntel

NONCE, SPKI = bytes(range(32)), b"\x07" * 32
AMD = FakeAmd("Genoa")
UNKNOWN = {"snp-version", "snp-algorithm", "tdx-version"}  # a version that nobody knows is named, not called forged


@pytest.fixture(scope="module")
def snp(tmp_path_factory: pytest.TempPathFactory) -> tuple[Verifier, dict[str, Any]]:
    """A verifier, and SEV-SNP evidence that it verifies."""
    path = fake.write_policy(tmp_path_factory.mktemp("flips"), "sev-snp")
    policy = load(path)
    made = fake.attestor(fake.SnpSource(AMD, host_data(policy.digest)), policy, spki_sha256=SPKI).attest(NONCE)
    verifier = fake.verifier(path, roots=Roots(amd=AMD.roots), collateral=Collateral(crls=[AMD.crl()]))
    assert VERIFIED == _judge(verifier, json.loads(made.to_json())).status
    return verifier, json.loads(made.to_json())


def _judge(verifier: Verifier, value: dict[str, Any]) -> Verdict:
    return verifier.verify_evidence(json.dumps(value).encode(), nonce=NONCE, spki_sha256=SPKI)


def _flips(data: bytes, places: Iterator[int] | range) -> Iterator[tuple[int, bytes]]:
    for place in places:
        altered = bytearray(data)
        altered[place] ^= 1 << place % 8
        yield place, bytes(altered)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_every_byte_of_a_report(snp: tuple[Verifier, dict[str, Any]]) -> None:
    """All 1,184 of them in the soak, else a fourth: invalid, but for the few that name an unknown version."""
    verifier, value = snp
    found: Counter[str] = Counter()
    report = base64.b64decode(value["report"])
    places = sorted({*range(0x48), *extent.some(range(len(report)), 300)})
    for place, altered in _flips(report, iter(places)):
        verdict = _judge(verifier, {**value, "report": _text(altered)})
        found[verdict.status] += 1
        assert verdict.status == (UNCHECKED if verdict.code in UNKNOWN else INVALID), (place, verdict.code)
    assert (1184, len(places)) == (len(report), found.total())
    assert found[INVALID] >= len(places) - 8


def test_every_byte_of_a_statement(snp: tuple[Verifier, dict[str, Any]]) -> None:
    """Digits, names, keys: the report binds all of it, and the proof the nonce."""
    verifier, value = snp
    for part in ("statement", "proof"):
        data = json.dumps(value[part]).encode()
        for place, altered in _flips(data, range(len(data))):
            try:
                changed = json.loads(altered)
            except ValueError:
                continue
            if changed != value[part]:
                verdict = _judge(verifier, {**value, part: changed})
                assert INVALID == verdict.status, (part, place, verdict.code)


def test_bytes_of_collateral(snp: tuple[Verifier, dict[str, Any]]) -> None:
    """Certificates that travel with the evidence are believed by signature alone."""
    verifier, value = snp
    rng = random.Random(1)
    for index, item in enumerate(value["collateral"]):
        data = base64.b64decode(item)
        for place, altered in _flips(data, iter(sorted(rng.sample(range(len(data)), extent.examples(60, 150))))):
            collateral = [*value["collateral"][:index], _text(altered), *value["collateral"][index + 1:]]
            verdict = _judge(verifier, {**value, "collateral": collateral})
            assert verdict.status in (INVALID, UNCHECKED), (index, place, verdict.code)


def test_bytes_of_a_revocation_list(snp: tuple[Verifier, dict[str, Any]]) -> None:
    """An altered list is forged, or no list of this chain's."""
    verifier, value = snp
    data, rng = AMD.crl().public_bytes(Encoding.DER), random.Random(2)
    for place, altered in _flips(data, iter(sorted(rng.sample(range(len(data)), extent.examples(60, 150))))):
        try:
            lists = [revocation.load(altered, "test")]
        except MalformedEvidenceError:
            continue
        judge = fake.verifier(verifier.reference.policy.path, roots=Roots(amd=AMD.roots),
                              collateral=Collateral(crls=lists))
        assert _judge(judge, value).status in (INVALID, UNCHECKED), place


def test_every_byte_of_a_connections_certificate() -> None:
    """Self-signed means that not a byte of it can be altered; or else its key is another."""
    key = fake.key()
    data = fake.certificate(key)
    assert "holds" == certificate.check(data, at=NOW).outcome
    for place, altered in _flips(data, range(len(data))):
        with pytest.raises((ForgedEvidenceError, MalformedEvidenceError)):
            certificate.check(altered, at=NOW)
        try:
            spki_sha256(altered)
        except MalformedEvidenceError:
            continue
        assert place >= 0
    for at in (NOW - timedelta(days=2), NOW + timedelta(days=2)):
        with pytest.raises(UncheckedEvidenceError):
            certificate.check(data, at=at)
    with pytest.raises(MalformedEvidenceError):
        certificate.check(data[:-1], at=NOW)
    assert x509.load_der_x509_certificate(data)


def test_bytes_of_a_tdx_quote_and_its_collateral(tmp_path: Path) -> None:
    """Quote, chain and Intel's documents, a sample of each."""
    intel, rng = FakeIntel(), random.Random(3)
    path = fake.write_policy(tmp_path, "tdx", evidence="")
    policy = load(path)
    roots = Roots(intel=intel.pins["root"], intel_der=intel.pins["root_der"])
    value = json.loads(fake.attestor(fake.TdxSource(intel, policy.digest), policy, spki_sha256=SPKI).attest(
        NONCE).to_json())
    verifier = fake.verifier(path, roots=roots, collateral=intel.collateral())
    assert VERIFIED == _judge(verifier, value).status
    quote = base64.b64decode(value["report"])
    for place, altered in _flips(quote, iter(sorted(rng.sample(range(len(quote)), extent.examples(80, 200))))):
        verdict = _judge(verifier, {**value, "report": _text(altered)})
        assert verdict.status in (INVALID, UNCHECKED), (place, verdict.code)
    document = intel.document()
    for name, text in document.items():
        for place in rng.sample(range(len(text)), 8):
            other = "0" if text[place] != "0" else "1"
            changed = {**document, name: text[:place] + other + text[place + 1:]}
            judge = fake.verifier(path, roots=roots, collateral=Collateral(documents=[dict(changed)]))
            verdict = _judge(judge, value)
            assert verdict.status in (INVALID, UNCHECKED, NOT_MET), (name, place, verdict.code)


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"null", b"\xff" * 100, b"{" * 3000, b'{"format":1}', b"0" * 70])
def test_malformed_input_raises_only_our_errors(snp: tuple[Verifier, dict[str, Any]], data: bytes) -> None:
    """A verdict comes of everything."""
    verdict = snp[0].verify_evidence(data)
    assert INVALID == verdict.status
    with pytest.raises(AttestationError):
        verdict.require()


def test_fuzzing_finds_nothing() -> None:
    """The long run is `make soak`."""
    _, finding = driver.run(client_fuzz.fuzz, client_fuzz.seeds(), seconds=0, seed=1, least=1500)
    assert finding is None
