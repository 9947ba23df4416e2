"""Measurements of version 2: rows with a source and a coverage. No row covers more than it measures, whichever way one
tries to make it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance.attestation.case import measurements
from appliance.attestation.trust.roots import Roots
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.cli.verifying import _ACCEPT
from appliance.client import ear
from appliance.client.verdict import FIRMWARE_PROVED, NOT_MET, UNCHECKED, VERIFIED, Verdict
from appliance.errors import ForgedEvidenceError, MalformedEvidenceError, RejectedEvidenceError
from appliance.policy import load
from tests.support import expected, rows
from tests.support import fake_appliance as fake
from tests.support.fake_amd import FakeAmd
from tests.support.fake_appliance import FakeAppliance
from tests.support.fake_intel import FakeIntel

Change = Callable[[dict[str, Any]], object]
BUILDER = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = BUILDER.public_key().public_bytes_raw()
AMD = FakeAmd("Genoa")


def _written(change: Change | None = None) -> bytes:
    value = rows.whole()
    if change is not None:
        change(value)
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def test_a_file_of_version_2_is_read_and_written_alike() -> None:
    """One text, and only the rows that cover an image speak for it."""
    found = measurements.parse(_written())
    assert _written() == found.to_json()
    assert {fake.LAUNCH} == found.sev_snp_digests()
    assert {fake.MRTD, rows.ENDORSED} == found.tdx_mrtds()
    assert {1, 2} == set(found.tdx_rtmrs())


def test_version_1_stays_as_it_was() -> None:
    """Its bytes, its signature, and its rows, each of which covers the image."""
    old = expected.image()
    assert old == measurements.parse(old.to_json())
    assert BUILDER.sign(b"appliance/measurements/v1\n" + old.to_json()) == measurements.sign(old.to_json(), BUILDER)
    assert {True} == {row.image for row in old.snp_rows()}
    assert old.tdx_rows() is None


def test_a_signature_is_of_one_version() -> None:
    """Bytes of version 2 under the domain of version 1 are not the builder's word, nor the other way round."""
    data = _written()
    signature = measurements.sign(data, BUILDER)
    assert BUILDER.sign(b"appliance/measurements/v2\n" + data) == signature
    assert measurements.parse(data) == measurements.signed(data, signature, PUBLIC)
    crossed = BUILDER.sign(b"appliance/measurements/v1\n" + data)
    with pytest.raises(MalformedEvidenceError, match="signed as"):
        measurements.signed(data, crossed, PUBLIC)
    with pytest.raises(ForgedEvidenceError):
        measurements.signed(data, BUILDER.sign(b"appliance/measurements/v3\n" + data), PUBLIC)


BROKEN: list[tuple[str, Change]] = [
    ("covers", lambda d: d["sev_snp"][0].update(covers=["image"])),
    ("covers", lambda d: d["sev_snp"][0].update(covers=["image", "firmware"])),
    ("covers", lambda d: d["sev_snp"][0].update(covers=[])),
    ("covers", lambda d: d["sev_snp"][0].update(covers=["firmware"])),
    # firmware alone may not call itself an image, by any field that stands beside
    ("only the firmware", lambda d: d["sev_snp"][1].update(covers=rows.WHOLE)),
    ("only the firmware", lambda d: d["sev_snp"][1].update(covers=rows.WHOLE, source="predicted")),
    ("only the firmware", lambda d: d["sev_snp"][0].update(source="recorded")),
    ("only the firmware", lambda d: d["sev_snp"][0].update(vmm="gce")),
    ("of vmm ec2", lambda d: d["sev_snp"][1].update(vmm="gce")),
    ("of vmm hyperv", lambda d: d["sev_snp"][1].update(source="azure-paravisor")),
    ("cpu_model", lambda d: d["sev_snp"][0].update(cpu_model=None)),
    ("cpu_model", lambda d: d["sev_snp"][1].update(cpu_model="EPYC-v4")),
    ("svn", lambda d: d["sev_snp"][0].update(svn=1)),
    ("svn", lambda d: d["tdx"][1].update(svn=None)),
    ("in one row", lambda d: d["sev_snp"][1].update(launch_digest=fake.LAUNCH.hex())),
    ("RTMR 1 and RTMR 2", lambda d: d["tdx"][1].update(covers=rows.WHOLE)),
    ("RTMR 1 and RTMR 2", lambda d: d["tdx"][0]["rtmr"].__setitem__(2, None)),
    ("RTMR 1 and RTMR 2", lambda d: d["tdx"][0].update(covers=rows.FIRMWARE)),
    ("only the firmware", lambda d: d["tdx"][0].update(source="recorded")),
    ("only the firmware", lambda d: d["tdx"][0].update(source="azure-paravisor")),
    ("EC2 has no TDX", lambda d: d["tdx"][0].update(source="ec2")),
    ("ram_gib", lambda d: d["tdx"][1].update(ram_gib=0)),
    ("early_accept", lambda d: d["tdx"][1].update(early_accept=1)),
    ("source", lambda d: d["tdx"][1].update(source="somebody")),
    ("Extra", lambda d: d["tdx"][1].update(more=1)),
    ("format", lambda d: d.update(format="appliance/measurements/v3")),
    ("Extra", lambda d: d.update(format="appliance/measurements/v1")),
]


@pytest.mark.parametrize(("said", "change"), BROKEN)
def test_a_row_says_no_more_than_it_measures(said: str, change: Change) -> None:
    """Each rule of the rows, broken once."""
    with pytest.raises(MalformedEvidenceError, match=said):
        measurements.parse(_written(change))


def _on_snp(folder: Path, known: Callable[[str], measurements.Measurements], **fields: Any) -> Verdict:
    with fake.snp(folder, AMD) as (server, policy):
        server.attestor._provider.fields = fields  # type: ignore[union-attr]
        found = known(load(policy).digest.hex())
        return fake.verifier(policy, known=found, roots=Roots(amd=AMD.roots),
                             collateral=Collateral(crls=[AMD.crl()])).verify(server.url)


def test_firmware_of_a_cloud_is_chip_and_firmware(tmp_path: Path) -> None:
    """Exit code 4, never 0: the digest says which firmware started, and the host chose what that booted."""
    zeros = {"measurement": rows.OLD, "host_data": bytes(32)}
    both = [rows.snp(fake.LAUNCH), rows.snp(rows.OLD, vmm="ec2", source="ec2")]
    found = _on_snp(tmp_path, lambda policy: rows.measured(both, [], policy), **zeros)
    assert (FIRMWARE_PROVED, 4) == (found.status, found.exit_code), found
    assert "chip and firmware proved, boot by the host's vTPM" in found.reason
    assert "aws/uefi/issues/20" in found.reason
    outcomes = {each.rule: each.outcome for each in found.findings}
    assert ("holds", "holds") == (outcomes["firmware"], outcomes["tls-key"])
    assert {"not checked"} == {outcomes[rule] for rule in ("measurement", "launch-policy", "policy", "models")}
    with pytest.raises(RejectedEvidenceError) as refused:  # which is what `connect` and `watch` ask
        found.require(*_ACCEPT.values())
    assert ("firmware-alone", True) == (refused.value.code, "no --accept takes this" in (refused.value.hint or ""))
    appraisal = ear.claims(found)["submods"]["appliance"]
    assert ("warning", {"hardware", "runtime-opaque"}) == (
        appraisal["ear_status"], set(appraisal["ear_trustworthiness_vector"]))


@pytest.mark.parametrize(("snps", "baked", "fields", "status"), [
    ([rows.snp(fake.LAUNCH)], True, {}, VERIFIED),
    # a firmware that no row names, beside rows of images and of firmware
    ([rows.snp(rows.OLD, vmm="gce")], True, {}, NOT_MET),
    ([rows.snp(fake.LAUNCH), rows.snp(rows.OLD, vmm="gce")], True, {"measurement": b"\x01" * 48}, NOT_MET),
    # a policy that neither the launch field nor a proved image holds
    ([rows.snp(rows.OLD, vmm="ec2", source="ec2")], False, {"measurement": rows.OLD, "host_data": bytes(32)}, NOT_MET),
    ([rows.snp(rows.OLD, vmm="ec2", source="ec2")], True, {"measurement": rows.OLD, "host_data": b"\x01" * 32},
     NOT_MET),
    # the launch field names the policy, and the firmware still does not cover the image
    ([rows.snp(rows.OLD, vmm="ec2", source="ec2")], True, {"measurement": rows.OLD}, FIRMWARE_PROVED),
    ([rows.snp(rows.OLD, vmm="ec2", source="recorded")], True, {"measurement": rows.OLD}, FIRMWARE_PROVED)])
def test_each_way_round_a_launch_digest(tmp_path: Path, snps: list[dict[str, Any]], baked: bool,
                                        fields: dict[str, Any], status: str) -> None:
    """Only a row that covers the image gives the word "verified"."""
    found = _on_snp(tmp_path, lambda policy: rows.measured(snps, [], policy if baked else None), **fields)
    assert status == found.status, found


@pytest.mark.parametrize(("tdxs", "fields", "status", "code"), [
    ([rows.tdx(fake.MRTD, None, *fake.RTMRS[1:3], None)], {}, VERIFIED, ""),
    ([rows.endorsed(fake.MRTD, None, *fake.RTMRS[1:3], None)], {}, VERIFIED, ""),
    # an endorsed firmware whose boot nobody predicted
    ([rows.endorsed(fake.MRTD)], {}, UNCHECKED, "unchecked-rtmr1"),
    # the firmware of one row with the registers of another
    ([rows.endorsed(fake.MRTD), rows.tdx(b"\x09" * 48, None, *fake.RTMRS[1:3], None)], {}, UNCHECKED,
     "unchecked-rtmr1"),
    ([rows.tdx(fake.MRTD, None, b"\x08" * 48, b"\x07" * 48, None),
      rows.tdx(b"\x09" * 48, None, *fake.RTMRS[1:3], None)], {}, NOT_MET, "evidence-rtmr1"),
    # two rows of one firmware: one must be there whole
    ([rows.tdx(fake.MRTD, None, fake.RTMRS[1], b"\x07" * 48, None),
      rows.tdx(fake.MRTD, None, b"\x08" * 48, fake.RTMRS[2], None)], {}, NOT_MET, "evidence-rtmr2"),
    ([rows.tdx(fake.MRTD, None, b"\x08" * 48, b"\x07" * 48, None),
      rows.tdx(fake.MRTD, None, *fake.RTMRS[1:3], None)], {}, VERIFIED, ""),
    # a row without registers beside one of the same firmware takes nothing away
    ([rows.endorsed(fake.MRTD), rows.tdx(fake.MRTD, None, b"\x08" * 48, b"\x07" * 48, None)], {}, NOT_MET,
     "evidence-rtmr1"),
    # RTMR 0, where a row has it, must hold
    ([rows.tdx(fake.MRTD, b"\x06" * 48, *fake.RTMRS[1:3], None)], {}, NOT_MET, "evidence-rtmr0"),
    ([rows.tdx(fake.MRTD, b"\x06" * 48, *fake.RTMRS[1:3], None)], {"rtmr0": b"\x06" * 48}, VERIFIED, ""),
    ([], {}, NOT_MET, "evidence-mrtd")])
def test_each_way_round_an_mrtd(tmp_path: Path, tdxs: list[dict[str, Any]], fields: dict[str, Any], status: str,
                                code: str) -> None:
    """A TD must show one row that covers the image, whole."""
    intel = FakeIntel()
    path = fake.write_policy(tmp_path, "tdx", evidence="")
    policy = load(path)
    server = FakeAppliance(fake.attestor(fake.TdxSource(intel, policy.digest, fields), policy), tmp_path)
    roots = Roots(intel=intel.pins["root"], intel_der=intel.pins["root_der"])
    try:
        found = fake.verifier(path, known=rows.measured([], tdxs), roots=roots,
                              collateral=intel.collateral()).verify(server.url)
    finally:
        server.stop()
    assert (status, code) == (found.status, found.code), found


@pytest.mark.parametrize(("row", "status", "failed"), [
    (rows.endorsed(fake.MRTD, None, *fake.RTMRS[1:3], None, svn=3), VERIFIED, []),
    (rows.endorsed(fake.MRTD, None, *fake.RTMRS[1:3], None, svn=2), NOT_MET, ["gce-svn"]),
    (rows.tdx(fake.MRTD, None, *fake.RTMRS[1:3], None), NOT_MET, ["gce-svn"])])
def test_a_policy_that_demands_google_s_endorsement(tmp_path: Path, row: dict[str, Any], status: str,
                                                    failed: list[str]) -> None:
    """`tee.evidence.gce` on a TD: an endorsed firmware of the version that is asked for, or none."""
    intel = FakeIntel()
    path = fake.write_policy(tmp_path, "tdx", evidence="gce {\n min_svn = 3\n }")
    path.write_text(path.read_text().replace("schema = 1", "schema = 2"))
    policy = load(path)
    server = FakeAppliance(fake.attestor(fake.TdxSource(intel, policy.digest, {}), policy), tmp_path)
    roots = Roots(intel=intel.pins["root"], intel_der=intel.pins["root_der"])
    try:
        found = fake.verifier(path, known=rows.measured([], [row]), roots=roots,
                              collateral=intel.collateral()).verify(server.url)
    finally:
        server.stop()
    assert (status, failed) == (found.status, [each.rule for each in found.findings if each.outcome == "fails"])
