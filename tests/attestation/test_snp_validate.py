"""Policy on SEV-SNP claims: each rule has a report that meets it and one that does not."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from appliance.attestation.case.rule import waived
from appliance.attestation.judge import collateral_folder
from appliance.attestation.snp.judging import verify as snp_verify
from appliance.attestation.snp.judging.validate import SnpExpectations, validate
from appliance.policy.schema.platform import PRODUCTS, LineTcb, Requirements, SevSnp
from tests.attestation.test_snp_verify import AT
from tests.support import fake_amd
from tests.support.fake_amd import NOW, FakeAmd
from tests.support.vectors import need

POLICY = 1 << 17  # the bit that must be one


def _failed(fake: FakeAmd, fields: dict[str, Any], policy: Requirements | None = None, *,
            crl: dict[str, Any] | None = None, **expected: Any) -> list[str]:
    known = fake.collateral()
    if crl is not None:
        known.crls.append(fake.crl(**crl))
    claims = snp_verify.verify(fake.report(**{"version": 5, **fields}), known, at=NOW, roots=fake.roots)
    findings = validate(claims, SnpExpectations(**expected), policy or _policy(), at=NOW)
    return [finding.rule for finding in findings if finding.outcome == "fails"]


def _policy(**snp: Any) -> Requirements:
    common = {name: snp.pop(name) for name in ("debug", "migration", "smt", "vmpl") if name in snp}
    return Requirements(**common, sev_snp=SevSnp.model_construct(**{**SevSnp().__dict__, "products": PRODUCTS, **snp}))


CASES: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    ({}, {}, []),
    ({"policy": POLICY | 1 << 19}, {}, ["debug"]),
    ({"policy": POLICY | 1 << 19}, {"debug": True}, []),
    ({"policy": POLICY | 1 << 18}, {}, ["migration"]),
    ({"report_id_ma": b"\x01" * 32}, {}, ["migration"]),
    ({"policy": POLICY | 1 << 18}, {"migration": True}, []),
    ({"policy": POLICY | 1 << 16}, {}, []),
    ({"platform": 1}, {}, []),
    ({"policy": POLICY | 1 << 16, "platform": 1}, {}, ["smt"]),
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
    ({}, {"tsme": True}, ["tsme"]),
    ({"platform": 1 << 1}, {"tsme": True}, []),
    ({}, {"ecc": True}, ["ecc"]),
    ({"platform": 1 << 2}, {"ecc": True}, []),
    ({}, {"alias_check": True}, ["alias-check"]),
    ({"platform": 1 << 5}, {"alias_check": True}, []),
    ({}, {"iommu_write_safe": True}, ["iommu-write-safe"]),
    ({"platform": 1 << 6}, {"iommu_write_safe": True}, []),
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
    floor = _policy(floors=(LineTcb(product="milan", **dict.fromkeys(high, 50)),))
    assert [] == _failed(fake, {}, floor)
    assert [f"tcb-{which}"] == _failed(fake, {which: low}, floor)


@pytest.mark.parametrize(("tcb", "rules"), [
    ({"fmc": 1}, []), ({"fmc": 0}, ["tcb-reported", "tcb-current", "tcb-committed", "tcb-launch"])])
def test_turin_has_a_floor_for_the_fmc(tcb: dict[str, int], rules: list[str]) -> None:
    """The FMC counts on Turin."""
    assert rules == _failed(FakeAmd("Turin", tcb=tcb), {}, _policy(floors=(LineTcb(product="turin", fmc=1),)))


def test_floors_count_for_their_own_line() -> None:
    """What is old for one product line is unknown to another: each has a floor of its own, or none."""
    floors = (LineTcb(product="genoa", bootloader=9, snp=50), LineTcb(product="turin", bootloader=1, snp=3))
    low = {"bootloader": 1, "snp": 4}
    assert [] == _failed(FakeAmd("Turin", tcb=low), {}, _policy(floors=floors))
    assert [] == _failed(FakeAmd("Milan", tcb=low), {}, _policy(floors=floors))
    assert "tcb-reported" in _failed(FakeAmd("Genoa", tcb=low), {}, _policy(floors=floors))


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


@pytest.mark.parametrize(("start", "end", "limit", "outcome"), [
    (-370, 6, None, "holds"), (-1, 370, None, "holds"), (-370, 0, None, "fails"), (-400, -30, None, "fails"),
    (-29, 30, 30, "holds"), (-31, 30, 30, "fails"), (1, 30, None, "not checked")])
def test_a_revocation_list_in_force_is_fresh(start: int, end: int, limit: int | None, outcome: str) -> None:
    """AMD's lists live for 47 days to a year. Schema 2 may ask for a younger one; a list that has ended fails."""
    fake = FakeAmd()
    known = fake.collateral()
    known.crls.append(fake.crl(start=NOW + timedelta(days=start), end=NOW + timedelta(days=end)))
    claims = snp_verify.verify(fake.report(version=5), known, at=NOW, roots=fake.roots)
    day = 86_400_000
    policy = _policy(max_revocation_age_ms=None if limit is None else limit * day).model_copy(
        update={"max_collateral_age_ms": day})  # which judges Intel's documents alone
    found = {finding.rule: finding for finding in validate(claims, SnpExpectations(), policy, at=NOW)}["revocation"]
    assert outcome == found.outcome
    assert waived(found).outcome == ("not checked" if outcome == "fails" else outcome)


def test_the_newest_list_counts() -> None:
    """Beside lists that have ended, the one in force is found whatever the order."""
    fake = FakeAmd()
    for order in (1, -1):
        known = fake.collateral()
        known.crls += [fake.crl(start=NOW - timedelta(days=age), end=NOW - timedelta(days=age - 20))
                       for age in (40, 10, 60)][::order]
        claims = snp_verify.verify(fake.report(version=5), known, at=NOW, roots=fake.roots)
        assert claims.revocation is not None
        assert (NOW - timedelta(days=10), True) == (claims.revocation.this_update, claims.revocation.in_force(NOW))


def test_a_genuine_debug_report_is_refused_by_policy() -> None:
    """The real report whose guest policy allows debugging is authentic and fails the rule for it."""
    folder = need("snp")
    claims = snp_verify.verify((folder / "debug_policy_report.bin").read_bytes(), collateral_folder.load(folder), at=AT)
    findings = validate(claims, SnpExpectations(), _policy(smt=True), at=AT)
    assert ["debug"] == [finding.rule for finding in map(waived, findings) if finding.outcome == "fails"]
