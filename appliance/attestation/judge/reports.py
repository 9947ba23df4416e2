"""Reports of hardware: each is parsed and verified once, and what it says and proves is recorded on
the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from appliance.attestation.envelopes import recognise
from appliance.attestation.judge.record import Record
from appliance.attestation.snp import abi as snp_abi
from appliance.attestation.snp import describe as snp_claims
from appliance.attestation.snp import verify as snp_verify
from appliance.attestation.snp.verify import SnpClaims
from appliance.attestation.tdx import abi as tdx_abi
from appliance.attestation.tdx import describe as tdx_claims
from appliance.attestation.tdx import verify as tdx_verify
from appliance.attestation.tdx.abi import TdxQuote
from appliance.attestation.tdx.verify import TdxClaims
from appliance.attestation.tpm import event_log as tpm_log
from appliance.attestation.tpm import verify as tpm_verify
from appliance.attestation.tpm.event_log import Event
from appliance.attestation.trust import Roots
from appliance.attestation.x509.collateral import Collateral
from appliance.errors import UncheckedEvidenceError

Log = Callable[[], bytes | tuple[Event, ...] | None]


def no_log() -> None:
    """No event log came with the report."""
    return


@dataclass(frozen=True)
class Given:
    """The means to verify a report. `bound`: what a quote has to answer, 64 bytes.

    `tail` is what follows the report, and `log` gives the event log of a TDX quote: neither is
    signed, and neither decides anything.
    """

    raw: bytes
    bound: bytes
    collateral: Collateral
    at: datetime | None
    roots: Roots
    tail: bytes = b""
    log: Log = no_log

    def time(self, platform: str) -> datetime:
        """The time to judge certificates by. Raises UncheckedEvidenceError without one."""
        if self.at is None:
            raise UncheckedEvidenceError(
                f"platform: {platform} evidence needs a time to be verified at", code="collateral-absent")
        return self.at


def snp(record: Record, given: Given) -> SnpClaims:
    """Verify an SEV-SNP report; its claims are recorded whether they are proved or not. Raises as
    `snp.verify`."""
    at, place = given.time("sev-snp"), len(record.warnings)
    parsed = snp_abi.parse(given.raw)
    record.kind = f"{recognise.SNP}, version {parsed.version}"

    def say(proved: SnpClaims | None) -> None:
        record.claims["claims"] = snp_claims.describe(parsed, proved)
        record.warnings[place:] = snp_claims.warnings(parsed, proved, at)
        record.followed(given.tail)

    say(None)
    claims = snp_verify.authenticate(parsed, given.collateral, at=at, roots=given.roots.amd)
    say(claims)
    record.holds("signature", f"the {claims.signing_key.upper()} signed the report")
    record.holds("chain", f"its chain leads to the pinned root ARK-{claims.product}")
    record.holds("endorsement", "chip id, TCB and product line are those of the certificate")
    if claims.revocation is not None and claims.revocation.in_force(at):
        record.holds("revocation", f"no certificate is revoked as of {claims.revocation.this_update:%Y-%m-%d}")
    return claims


def tdx(record: Record, given: Given) -> TdxClaims:
    """Verify a TDX quote; its claims are recorded whether they are proved or not. Raises as
    `tdx.verify`."""
    at, place = given.time("tdx"), len(record.warnings)
    parsed = tdx_abi.parse(given.raw)
    record.kind = f"{recognise.TDX}, version {parsed.version}"
    record.claims["claims"] = tdx_claims.describe(parsed, None)
    record.warnings += tdx_claims.warnings(parsed, None)
    record.followed(given.tail)
    signed = tdx_verify.verify_signatures(parsed, at=at, root=given.roots.intel)
    record.holds("signature", "the attestation key signed the quote")
    record.holds("attestation-key", "the quoting enclave's report binds that key")
    record.holds("chain", "the PCK signed that report, and its chain leads to the pinned root of Intel")
    before_log = len(record.warnings)
    _compare_log(record, given.log(), parsed)
    told_of_log = record.warnings[before_log:]
    claims = tdx_verify.authenticate(signed, given.collateral, at=at, root=given.roots.intel)
    record.claims["claims"] = tdx_claims.describe(parsed, claims)
    record.warnings[place:] = [*tdx_claims.warnings(parsed, claims), *told_of_log]
    record.followed(given.tail)
    record.holds("quoting-enclave", "the quoting enclave is Intel's")
    record.holds("tcb-information", "Intel's signed TCB information was in force")
    return claims


def _compare_log(record: Record, log: bytes | tuple[Event, ...] | None, quote: TdxQuote) -> None:
    """Compare RTMRs with an event log, or with events that were read from one.

    A CCEL numbers RTMRs from 1; number 0 stands for the MRTD, which no event extends.
    """
    registers = {"sha384": {number + 1: value for number, value in enumerate(quote.body.rtmr)}}
    if log is None:
        return
    if isinstance(log, bytes):
        events, explanation = tpm_verify.explained(log, registers)
    else:
        events, explanation = log, tpm_log.explain(log, registers)
    record.log(tpm_log.shifted(explanation, -1), len(events), "RTMR")
