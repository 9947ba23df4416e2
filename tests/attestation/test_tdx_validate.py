"""Policy on TDX claims: each rule has a quote that meets it and one that does not."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from appliance.attestation.tdx.judging import verify as tdx_verify
from appliance.attestation.tdx.judging.validate import TdxExpectations, validate
from appliance.attestation.tdx.judging.verify import TdxClaims
from appliance.policy.schema.platform import Requirements, Tdx
from tests.attestation.test_tdx_verify import AT, _real
from tests.support.fake_intel import NOW, FakeIntel
from tests.support.vectors import need


def _claims(options: dict[str, Any] | None = None, **fields: Any) -> TdxClaims:
    fake = FakeIntel(options or {})
    return tdx_verify.verify(fake.quote(**fields), fake.collateral(), at=NOW, **fake.pins)


def _failed(claims: TdxClaims, policy: Requirements | None = None, **expected: Any) -> list[str]:
    findings = validate(claims, TdxExpectations(**expected), policy or Requirements(), at=NOW)
    return [finding.rule for finding in findings if finding.outcome == "fails"]


def _policy(**tdx: Any) -> Requirements:
    common = {name: tdx.pop(name) for name in ("debug", "migration", "smt") if name in tdx}
    return Requirements(**common, tdx=Tdx.model_construct(**{**Tdx().__dict__, **tdx}))


@pytest.mark.parametrize(("options", "policy", "rules"), [
    ({}, {}, []),
    ({"status": "OutOfDate"}, {}, ["tcb-status"]),
    ({"status": "OutOfDate"}, {"tcb_status": ("UpToDate", "OutOfDate")}, []),
    ({"advisories": ["INTEL-SA-00001"]}, {}, ["advisories"]),
    ({"advisories": ["INTEL-SA-00001"]}, {"accepted_advisories": ("INTEL-SA-00001",)}, []),
    ({}, {"min_evaluation_number": 18}, ["evaluation-number"]),
    ({}, {"min_evaluation_number": 17}, []),
    ({"smt": True}, {}, ["smt"]),
    ({"smt": True}, {"smt": True}, []),
])
def test_each_rule_on_the_platform(options: dict[str, Any], policy: dict[str, Any], rules: list[str]) -> None:
    """Exactly the rules that a platform breaks fail, and no other."""
    assert rules == _failed(_claims(options), _policy(**policy))


@pytest.mark.parametrize(("attributes", "policy", "rules"), [
    (1 << 28 | 1, {}, ["debug"]), (1 << 28 | 1, {"debug": True}, []), (1 << 28 | 2, {}, ["debug"]),
    (0, {}, ["sept-ve-disable"]), (1 << 28 | 1 << 29, {}, ["migration"]),
    (1 << 28 | 1 << 29, {"migration": True}, []), (1 << 28 | 1 << 40, {}, ["td-attributes"])])
def test_each_rule_on_attributes(attributes: int, policy: dict[str, Any], rules: list[str]) -> None:
    """Attributes are judged here too, and not only by the library that refuses some of them."""
    claims = _claims()
    body = replace(claims.quote.body, td_attributes=attributes)
    assert rules == _failed(replace(claims, quote=replace(claims.quote, body=body)), _policy(**policy))


@pytest.mark.parametrize(("field", "expectation", "size", "rule"), [
    ("report_data", "report_data", 64, "report-data"), ("mr_config_id", "mr_config_id", 48, "mrconfigid"),
    ("mr_owner", "mr_owner", 48, "mrowner"), ("mr_owner_config", "mr_owner_config", 48, "mrownerconfig")])
def test_expected_fields_are_compared(field: str, expectation: str, size: int, rule: str) -> None:
    """A field that is expected must be just that."""
    value = b"\x07" * size
    assert [] == _failed(_claims(**{field: value}), **{expectation: value})
    assert [rule] == _failed(_claims(**{field: value}), **{expectation: bytes(size)})


def test_measurements_are_compared() -> None:
    """MRTD and each RTMR must be among the expected values; XFAM must be the expected one."""
    claims = _claims(mr_td=b"t" * 48, rtmr0=b"0" * 48, rtmr3=b"3" * 48)
    assert [] == _failed(claims, mr_tds=[b"t" * 48], rtmrs={0: [b"0" * 48], 3: [b"x" * 48, b"3" * 48]}, xfam=0xE7)
    assert ["mrtd", "rtmr3", "xfam"] == _failed(claims, mr_tds=[bytes(48)], rtmrs={3: [b"0" * 48]}, xfam=0xE6)


def test_a_module_that_intel_did_not_sign_for_production_fails() -> None:
    """MRSIGNERSEAM is zero for Intel's modules."""
    claims = _claims()
    body = replace(claims.quote.body, mr_signer_seam=b"\x01" * 48)
    assert ["seam"] == _failed(replace(claims, quote=replace(claims.quote, body=body)))


@pytest.mark.parametrize("what", ["info_issued", "qe_issued", "platform_listed"])
def test_old_collateral_fails(what: str) -> None:
    """TCB information, QE identity or the PCK's revocation list, each still in force, may be older than the policy
    allows, however new the others are."""
    claims = _claims({what: NOW - timedelta(days=10)})
    ten, nine = (Requirements().model_copy(update={"max_collateral_age_ms": days * 86_400_000}) for days in (10, 9))
    assert [] == _failed(claims, ten)
    assert ["collateral-age"] == _failed(claims, nine)


def test_the_real_quote_meets_a_policy() -> None:
    """The vector passes with SMT allowed, and fails for nothing else without."""
    need("tdx")
    quote, known = _real()
    claims = tdx_verify.verify(quote, known, at=AT)
    findings = validate(claims, TdxExpectations(), Requirements(), at=AT)
    assert ["smt"] == [finding.rule for finding in findings if finding.outcome == "fails"]


SVN, SERVICE = b"\x03\x01" + bytes(14), b"\x05" * 47 + b"\x06"
TD15: dict[str, Any] = {"version": 5, "td15": True}


@pytest.mark.parametrize(("fields", "policy", "rules"), [
    ({}, {"mr_seam": ((b"\x0a" * 48).hex(),)}, []),
    ({}, {"mr_seam": ((b"\x0b" * 48).hex(),)}, ["mrseam"]),
    ({}, {"min_tee_tcb_svn": SVN.hex()}, []),
    ({}, {"min_tee_tcb_svn": "0302" + "00" * 14}, ["tee-tcb-svn"]),
    ({}, {"min_tee_tcb_svn": "00" * 15 + "01"}, ["tee-tcb-svn"]),
    ({**TD15, "tee_tcb_svn2": b"\x02\x01" + bytes(14)}, {"min_tee_tcb_svn": SVN.hex()}, ["tee-tcb-svn"]),
    ({**TD15, "tee_tcb_svn2": b"\x04\x01" + bytes(14)}, {"min_tee_tcb_svn": SVN.hex()}, []),
    ({}, {"xfam": "0x00000000000000e7"}, []),
    ({}, {"xfam": "0xffffffffffffffff"}, []),
    ({}, {"xfam": "0x00000000000000e3"}, ["xfam"]),
    (TD15, {}, []),
    ({**TD15, "service": SERVICE}, {}, ["service-td"]),
    ({**TD15, "service": SERVICE}, {"migration": True}, ["service-td"]),
    ({**TD15, "service": SERVICE}, {"service_tds": (bytes(48).hex(),)}, ["service-td"]),
    ({**TD15, "service": SERVICE}, {"service_tds": (SERVICE.hex(),)}, []),
])
def test_each_rule_on_the_module_and_what_the_td_may_use(fields: dict[str, Any], policy: dict[str, Any],
                                                         rules: list[str]) -> None:
    """MRSEAM, TEE_TCB_SVN at launch and now, XFAM and MRSERVICETD: each met, and each broken alone."""
    assert rules == _failed(_claims(**fields), _policy(**policy))


def test_the_policy_and_a_caller_both_judge_xfam() -> None:
    """A mask of the policy does not widen the one value that a caller expects, nor the other way round."""
    claims, policy = _claims(), _policy(xfam="0x00000000000602e7")
    assert [[], ["xfam"]] == [_failed(claims, policy, xfam=value) for value in (0xE7, 0x602E7)]
    assert ["xfam"] == _failed(claims, _policy(xfam="0x0000000000000007"), xfam=0xE7)


DAYS = 86_400_000


def _behind(status: str, date: str) -> dict[str, Any]:
    level = {"sgxtcbcomponents": [{"svn": 5}] * 16, "pcesvn": 11, "tdxtcbcomponents": [{"svn": 0}] * 16}
    return {"levels": [{"tcb": level, "tcbDate": date, "tcbStatus": status, "advisoryIDs": ["INTEL-SA-00001"]}]}


@pytest.mark.parametrize(("status", "days", "policy", "rules"), [
    ("OutOfDate", 31, {}, []),  # of 2026-05-01, judged on 2026-06-01
    ("OutOfDate", 30, {}, ["tcb-status", "advisories"]),
    ("OutOfDate", None, {}, ["tcb-status", "advisories"]),
    ("OutOfDateConfigurationNeeded", 31, {}, ["tcb-status"]),
    ("OutOfDateConfigurationNeeded", 31, {"tcb_status": ("ConfigurationNeeded",)}, []),
    ("OutOfDateConfigurationNeeded", 30, {"tcb_status": ("ConfigurationNeeded",)}, ["tcb-status", "advisories"]),
    ("ConfigurationNeeded", 400, {}, ["tcb-status", "advisories"]),
    ("UpToDate", 400, {}, ["advisories"]),
])
def test_a_platform_may_be_out_of_date_for_a_time(status: str, days: int | None, policy: dict[str, Any],
                                                  rules: list[str]) -> None:
    """`tcb_grace` counts from the date of the platform's level, and excuses nothing but being out of date."""
    grace = None if days is None else days * DAYS
    assert rules == _failed(_claims(_behind(status, "2026-05-01T00:00:00Z")), _policy(tcb_grace_ms=grace, **policy))


def test_advisories_of_what_is_up_to_date_are_not_excused() -> None:
    """A TDX module that is up to date keeps its advisory open, however long the platform may be out of date."""
    module = {"module_levels": [{"tcb": {"isvsvn": 1}, "tcbDate": "2026-05-01T00:00:00Z", "tcbStatus": "UpToDate",
                                 "advisoryIDs": ["INTEL-SA-00002"]}]}
    claims = _claims({**_behind("OutOfDate", "2026-05-01T00:00:00Z"), **module})
    assert ["advisories"] == _failed(claims, _policy(tcb_grace_ms=31 * DAYS))
    assert [] == _failed(claims, _policy(tcb_grace_ms=31 * DAYS, accepted_advisories=("INTEL-SA-00002",)))


def test_the_time_of_grace_is_that_of_the_oldest_part() -> None:
    """A platform of May with a TDX module of January is out of date since January."""
    module = {"module_levels": [{"tcb": {"isvsvn": 1}, "tcbDate": "2026-01-01T00:00:00Z", "tcbStatus": "OutOfDate"}]}
    claims = _claims({**_behind("OutOfDate", "2026-05-01T00:00:00Z"), **module})
    assert ["tcb-status", "advisories"] == _failed(claims, _policy(tcb_grace_ms=150 * DAYS))
    assert [] == _failed(claims, _policy(tcb_grace_ms=151 * DAYS))
