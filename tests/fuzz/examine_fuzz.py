"""Fuzz target: `appliance evidence` on files from strangers, of every kind that is recognised.

A verdict comes out of each, and what is called genuine claims only what was signed.
"""

from __future__ import annotations

import functools
import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding

from appliance.attestation.binding import Build
from appliance.attestation.case.record import Record
from appliance.attestation.collect.attestor import Attestor, BoundFacts
from appliance.attestation.judge import examine
from appliance.attestation.judge.material import Material
from appliance.attestation.simulated.collecting.collector import SimulatedProvider
from appliance.attestation.trust.roots import Roots
from appliance.attestation.x509.judging.collateral import Collateral
from tests.support import envelopes, fake_tpm, provider_envelopes
from tests.support.envelopes import AMD, INTEL
from tests.support.fake_amd import NOW
from tests.support.fake_intel import dice_certificate
from tests.support.fake_nitro import FakeNitro
from tests.support.vectors import VECTORS

NITRO = FakeNitro()
ROOTS = Roots(amd=AMD.roots, intel=INTEL.pins["root"], intel_der=INTEL.pins["root_der"],
              others=NITRO.roots.others)
LARGEST = 8 << 10  # bytes of a real file that is a seed: longer ones make each input slow
_TPM = b"\xff\x54\x43\x47"


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """A folder with what a TPM quote is judged with."""
    folder = tempfile.TemporaryDirectory(prefix="examine-fuzz-")
    message = fake_tpm.quote(envelopes.ALL_PCRS)
    for name, data in (("q.sig", fake_tpm.sign(message)), ("hcl.bin", envelopes.azure()),
                       ("eventlog.gz", gzip.compress(fake_tpm.event_log([(0, 1, b"x")])))):
        (Path(folder.name) / name).write_bytes(data)
    return folder


@functools.cache
def _known() -> Collateral:
    return Collateral(certificates=AMD.collateral().certificates, documents=INTEL.collateral().documents)


def _examine(data: bytes) -> Record:
    path = Path(_folder().name) / "q.msg"
    if data.startswith(_TPM):  # a quote is read from its file, with those beside it
        path.write_bytes(data)
    return examine.examine(Material(data, path, _known().with_items((), ""), roots=ROOTS), at=NOW)


def _signed(outcome: Record) -> tuple[str, str]:
    """What somebody's key signed: the claims of a report or quote, and of a TPM's quote beside it."""
    return json.dumps(outcome.claims.get("claims")), json.dumps(outcome.claims.get("TPM quote"))


@functools.cache
def _genuine() -> tuple[frozenset[str], frozenset[str]]:
    found = [_signed(outcome) for outcome in map(_examine, seeds()) if outcome.verdict == "genuine"]
    return frozenset(claims for claims, _ in found), frozenset(quote for _, quote in found)


def fuzz(data: bytes) -> None:
    """Judge `data` as a file."""
    outcome = _examine(data)
    assert str(outcome)
    assert outcome.as_json()
    if outcome.verdict == "genuine":
        claims, quote = _signed(outcome)
        if claims not in _genuine()[0] or quote not in _genuine()[1]:
            raise AssertionError(f"genuine, and nobody signed it: {outcome}")


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _buried(quote: bytes, report: bytes) -> list[bytes]:
    """Texts and envelopes of nobody's that have evidence in them, and evidence in other spellings."""
    url = envelopes.b64url(report).rstrip("=")
    return [quote.hex().encode(), envelopes.b64(quote).encode(), url.encode(), _json({"a": {"b": [1, url]}}),
            b"\x0a\x05hello\x12" + len(report).to_bytes(2, "little") + report, b"0x" + report.hex().encode() + b"\n",
            AMD.leaf.public_bytes(Encoding.DER).ljust(4096, b"\0"),
            *(path.read_bytes() for path in sorted(VECTORS.glob("*/*.*")) if path.stat().st_size <= LARGEST)]


@functools.cache
def seeds() -> list[bytes]:
    """Evidence of each kind, and each envelope; the real ones, too, where they are at hand."""
    simulated = Attestor(SimulatedProvider(bytes(32)), BoundFacts(bytes(48), bytes(48), Build(version="0.1.0")))
    log, registers = envelopes.ccel([(0, b"firmware"), (1, b"kernel")])
    quote = INTEL.quote(**registers)
    return [
        AMD.report(), AMD.report(version=5) + envelopes.table(envelopes.der()), envelopes.azure(), envelopes.azure(4),
        quote, INTEL.quote(5, td15=True), INTEL.quote(5) + b"tail", dice_certificate(), dice_certificate(quote),
        fake_tpm.quote(envelopes.ALL_PCRS), simulated.attest(bytes(32)).to_json(), _json(envelopes.trustee_snp()),
        _json({"quote": envelopes.b64(quote), "cc_eventlog": envelopes.b64(log)}),
        *(_json(envelopes.azure_snp(version)) for version in (0, 1)),
        *(_json(envelopes.azure_tdx(version)) for version in (0, 1)), _json(envelopes.tpm()), _json(envelopes.tsm()),
        _json({"platform": "az-snp", "evidence": envelopes.azure_snp()}), envelopes.dstack(),
        envelopes.dstack(tdx=False), _json(envelopes.dstack_json()), *map(_json, provider_envelopes.every()),
        provider_envelopes.token(), NITRO.document(), b"\x00\x04" + envelopes.sized(NITRO.document()), b"{}",
        b"-----BEGIN CERTIFICATE-----\n",
        *_buried(quote, AMD.report())]
