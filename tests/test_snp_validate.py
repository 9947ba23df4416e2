"""Policy on SEV-SNP claims: each rule has a report that meets it and one that does not."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from appliance.attestation import collateral, snp_verify
from appliance.attestation.snp_validate import SnpExpected, validate
from appliance.policy.schema.platform import Evidence, MinTcb, SevSnp
from tests.support import fake_amd
from tests.support.fake_amd import NOW, FakeAmd
from tests.support.vectors import need
from tests.test_snp_verify import AT

POLICY = 1 << 17  # the bit that must be one


def _failed(fake: FakeAmd, fields: dict[str, Any], policy: Evidence | None = None, *,
            crl: dict[str, Any] | None = None, **expected: Any) -> list[str]:
    known = fake.collateral()
    if crl is not None:
        known.crls.append(fake.crl(**crl))
    claims = snp_verify.verify(fake.report(**{"version": 5, **fields}), known, at=NOW, roots=fake.roots)
    findings = validate(claims, SnpExpected(**expected), policy or Evidence(), at=NOW)
    return [finding.rule for finding in findings if finding.outcome == "fails"]


def _policy(**snp: Any) -> Evidence:
    common = {name: snp.pop(name) for name in ("debug", "migration", "smt", "vmpl") if name in snp}
    return Evidence(**common, sev_snp=SevSnp.model_construct(**{**SevSnp().__dict__, **snp}))


CASES: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    ({}, {}, []),
    ({"policy": POLICY | 1 << 19}, {}, ["debug"]),
    ({"policy": POLICY | 1 << 19}, {"debug": True}, []),
    ({"policy": POLICY | 1 << 18}, {}, ["migration"]),
    ({"report_id_ma": b"\x01" * 32}, {}, ["migration"]),
    ({"policy": POLICY | 1 << 18}, {"migration": True}, []),
    ({"policy": POLICY | 1 << 16}, {}, ["smt"]),
    ({"platform": 1}, {}, ["smt"]),
    ({"policy": POLICY | 1 << 16, "platform": 1}, {"smt": True}, []),
    ({"policy": POLICY | 1 << 40}, {}, ["guest-policy"]),
    ({"policy": 0}, {}, ["guest-policy"]),
    ({"policy": POLICY | 1 << 21}, {}, ["cxl"]),
    ({"policy": POLICY | 1 << 21}, {"cxl": True}, []),
    ({}, {"single_socket": True}, ["single-socket"]),
    ({"policy": POLICY | 1 << 20}, {"single_socket": True}, []),
    ({}, {"aes256_xts": True}, ["aes256-xts"]),
    ({"policy": POLICY | 1 << 22}, {"aes256_xts": True}, []),
    ({}, {"rapl_disabled": True}, ["rapl"]),
    ({"platform": 1 << 3}, {"rapl_disabled": True}, []),
    ({}, {"ciphertext_hiding": True}, ["ciphertext-hiding"]),
    ({"platform": 1 << 4}, {"ciphertext_hiding": True}, []),
    ({"vmpl": 1}, {}, ["vmpl"]),
    ({"vmpl": 1}, {"vmpl": 1}, []),
    ({"vmpl": 0xFFFFFFFF}, {"vmpl": 3}, ["vmpl"]),
    ({"svn": 4}, {"min_guest_svn": 5}, ["guest-svn"]),
    ({"svn": 5}, {"min_guest_svn": 5}, []),
    ({}, {"products": ("genoa", "turin")}, ["product"]),
    ({}, {"signing_keys": ("vlek",)}, ["signing-key"]),
    ({}, {"min_api": "1.56"}, ["api"]),
    ({}, {"min_api": "1.55"}, []),
    ({"committed_version": (1, 54, 1)}, {"min_api": "1.55"}, ["api"]),
    ({}, {"id_key_sha384": "sha384:" + "11" * 48}, ["id-key"]),
    ({"id_key": b"\x11" * 48}, {"id_key_sha384": "11" * 48}, []),
    ({"author_key": b"\x11" * 48}, {"author_key_sha384": "11" * 48}, ["author-key"]),
    ({"author_key": b"\x11" * 48, "flags": 1}, {"author_key_sha384": "11" * 48}, []),
]


@pytest.mark.parametrize(("fields", "policy", "rules"), CASES)
def test_each_rule_of_the_policy(fields: dict[str, Any], policy: dict[str, Any], rules: list[str]) -> None:
    """Exactly the rules that a report breaks fail, and no other."""
    assert rules == _failed(FakeAmd(), fields, _policy(**policy))


@pytest.mark.parametrize("component", ["bootloader", "tee", "snp", "microcode"])
@pytest.mark.parametrize("which", ["current", "committed", "launch"])
def test_every_component_of_every_tcb_has_its_own_floor(component: str, which: str) -> None:
    """One component below its floor fails, however high the others are."""
    high = dict.fromkeys(("bootloader", "tee", "snp", "microcode"), 100)
    fake, low = FakeAmd(tcb=high), fake_amd.tcb_bytes("Milan", {**high, component: 49})
    floor = _policy(min_tcb=MinTcb(**dict.fromkeys(high, 50)))
    assert [] == _failed(fake, {}, floor)
    assert [f"tcb-{which}"] == _failed(fake, {which: low}, floor)


@pytest.mark.parametrize(("tcb", "rules"), [
    ({"fmc": 1}, []), ({"fmc": 0}, ["tcb-reported", "tcb-current", "tcb-committed", "tcb-launch"])])
def test_turin_has_a_floor_for_the_fmc(tcb: dict[str, int], rules: list[str]) -> None:
    """The FMC counts on Turin."""
    assert rules == _failed(FakeAmd("Turin", tcb=tcb), {}, _policy(min_tcb=MinTcb(fmc=1)))


@pytest.mark.parametrize(("field", "expectation", "size", "rule"), [
    ("report_data", "report_data", 64, "report-data"), ("host_data", "host_data", 32, "host-data"),
    ("family_id", "family_id", 16, "family-id"), ("image_id", "image_id", 16, "image-id")])
def test_expected_fields_are_compared(field: str, expectation: str, size: int, rule: str) -> None:
    """A field that is expected must be just that."""
    value = b"\x07" * size
    assert [] == _failed(FakeAmd(), {field: value}, **{expectation: value})
    assert [rule] == _failed(FakeAmd(), {field: value}, **{expectation: bytes(size)})


def test_one_of_several_measurements_is_enough() -> None:
    """A measurement must be among those expected; an empty list allows none."""
    found, other = b"\x05" * 48, b"\x06" * 48
    assert [] == _failed(FakeAmd(), {"measurement": found}, measurements=[other, found])
    assert ["measurement"] == _failed(FakeAmd(), {"measurement": found}, measurements=[other])
    assert ["measurement"] == _failed(FakeAmd(), {"measurement": found}, measurements=[])


def test_an_old_revocation_list_fails() -> None:
    """A list that is still in force may be older than the policy allows."""
    assert [] == _failed(FakeAmd(), {}, crl={"start": NOW - timedelta(days=29)})
    assert ["revocation"] == _failed(FakeAmd(), {}, crl={"start": NOW - timedelta(days=31)})


def test_a_genuine_debug_report_is_refused_by_policy() -> None:
    """The real report whose guest policy allows debugging is authentic and fails the rule for it."""
    folder = need("snp")
    claims = snp_verify.verify((folder / "debug_policy_report.bin").read_bytes(), collateral.load(folder), at=AT)
    findings = validate(claims, SnpExpected(), Evidence(smt=True), at=AT)
    assert ["debug"] == [finding.rule for finding in findings if finding.outcome == "fails"]
