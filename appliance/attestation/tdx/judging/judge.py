"""The judging half of TDX."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from appliance.attestation.case import event_log
from appliance.attestation.case.event_log import Event
from appliance.attestation.case.expected import Expectations
from appliance.attestation.case.given import Means
from appliance.attestation.case.judge import AuthenticReport, Judge, by_time
from appliance.attestation.case.machine import INSTANCE, PPID, MachineId, Names
from appliance.attestation.case.measurements import Measurements
from appliance.attestation.case.record import Record
from appliance.attestation.findings import Finding
from appliance.attestation.tdx import abi
from appliance.attestation.tdx.abi import TdxQuote
from appliance.attestation.tdx.collecting.collector import LAUNCH
from appliance.attestation.tdx.judging import describe, validate, verify
from appliance.attestation.tdx.judging.rules import FIELDS, QUIET, RULES
from appliance.attestation.tdx.judging.validate import TdxExpectations
from appliance.attestation.tdx.judging.verify import TdxClaims
from appliance.attestation.tdx.signatures import verify_signatures
from appliance.platforms import TDX

KIND, SGX = "Intel TDX quote", "Intel SGX quote"
_INTEL_QE = bytes.fromhex("939a7233f79c4ca9940a0db3957f0607")  # the vendor of Intel's quoting enclaves, at offset 12
_TEE_TYPE_AT, _TDX_TYPE = slice(4, 8), b"\x81\x00\x00\x00"


def authentic(record: Record, given: Means) -> TdxClaims:
    """Verify a TDX quote; its claims are recorded whether they are proved or not. Raises as
    `tdx.verify`."""
    at, place = given.time(TDX.name), len(record.warnings)
    parsed = abi.parse(given.raw)
    record.kind, record.hardware = f"{KIND}, version {parsed.version}", given.raw
    record.claims["claims"] = describe.describe(parsed, None)
    record.warnings += describe.warnings(parsed, None, at)
    record.followed(given.tail)
    signed = verify_signatures(parsed, at=at, root=given.roots.intel)
    record.holds("signature", "the attestation key signed the quote")
    record.holds("attestation-key", "the quoting enclave's report binds that key")
    record.holds("chain", "the PCK signed that report, and its chain leads to the pinned root of Intel")
    before_log = len(record.warnings)
    _compare_log(record, given.log(), parsed)
    told_of_log = record.warnings[before_log:]
    claims = verify.authenticate(signed, given.collateral, at=at, root=given.roots.intel)
    record.names, record.authentic = names(claims), claims
    record.claims["claims"] = describe.describe(parsed, claims)
    record.warnings[place:] = [*describe.warnings(parsed, claims, at), *told_of_log]
    record.followed(given.tail)
    record.holds("quoting-enclave", "the quoting enclave is Intel's")
    record.holds("tcb-information", "Intel's signed TCB information was in force")
    return claims


def names(claims: TdxClaims, _expected: Expectations | None = None) -> Names:
    """Return the platform's names, as Intel certified them in the PCK."""
    pck = claims.pck
    found = ((PPID, pck.ppid), (INSTANCE, pck.instance or b""))
    return tuple(MachineId(kind, value) for kind, value in found if any(value)) or (
        "the PCK has neither a PPID nor a platform instance id")


def _compare_log(record: Record, log: bytes | tuple[Event, ...] | None, quote: TdxQuote) -> None:
    """Compare RTMRs with an event log, or with events that were read from one.

    A CCEL numbers RTMRs from 1; number 0 stands for the MRTD, which no event extends.
    """
    registers = {"sha384": {number + 1: value for number, value in enumerate(quote.body.rtmr)}}
    if log is None:
        return
    if isinstance(log, bytes):
        events, explanation = event_log.explained(log, registers)
    else:
        events, explanation = log, event_log.explain(log, registers)
    record.log(event_log.shifted(explanation, -1), len(events), "RTMR")


def _verify(record: Record, given: Means) -> AuthenticReport:
    found = authentic(record, given)
    return AuthenticReport(found.quote.body.report_data, found.quote.body.mr_config_id, found)


def _validate(claims: TdxClaims, expected: Expectations, at: datetime) -> tuple[Finding, ...]:
    own = expected.own.get(TDX.name, TdxExpectations())
    return validate.validate(claims, own, expected.hardware, at=at)


def _recognise(data: bytes) -> str | None:
    if data[12:28] == _INTEL_QE or (data[2:8] == b"\x02\x00" + _TDX_TYPE and data[:2] in (b"\x04\x00", b"\x05\x00")):
        return KIND if data[_TEE_TYPE_AT] == _TDX_TYPE else SGX
    return None


def expect(measurements: Measurements, expected: TdxExpectations | None = None) -> TdxExpectations:
    """`expected` with the image's MRTDs and the RTMRs that are predicted; an image without any
    accepts no TDX quote."""
    return replace(expected or TdxExpectations(), mr_tds=measurements.tdx_mrtds(), rtmrs=measurements.tdx_rtmrs(),
                   rows=measurements.tdx_rows())


JUDGE = Judge(
    _verify, by_time(_validate), lambda claims: f"Intel TDX, FMSPC {claims.tcb.fmspc}", LAUNCH.value,
    image=("mrtd", "rtmr1", "rtmr2"), required=("mrtd", "rtmr1", "rtmr2", "launch-policy"), rules=RULES,
    recognise=_recognise, expect=expect, names=names, fields=FIELDS, quiet=QUIET)
