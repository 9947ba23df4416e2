"""A TDX quote's claims in Intel's terms, for people and for JSON."""

from __future__ import annotations

from datetime import datetime

from appliance.attestation.tdx import abi
from appliance.attestation.tdx.abi import TdxQuote
from appliance.attestation.tdx.judging.verify import TdxClaims
from appliance.attestation.x509.judging.requests import FETCH_DUE
from appliance.attestation.x509.judging.revocation import ends_soon

Claims = list[tuple[str, str]]
_ATTRIBUTES = {
    "DEBUG": 1, "SEPT_VE_DISABLE": abi.SEPT_VE_DISABLE, "MIGRATABLE": abi.MIGRATABLE, "PKS": abi.PKS,
    "KL": abi.KEY_LOCKER, "PERFMON": abi.PERFMON}


def describe(quote: TdxQuote, claims: TdxClaims | None) -> Claims:
    """Every field of a quote: name and value; with the TCB's standing once the quote is proved
    authentic."""
    body = quote.body
    found = [
        ("version", str(quote.version)), ("TEE_TCB_SVN", body.tee_tcb_svn.hex()), ("MRSEAM", body.mr_seam.hex()),
        ("MRSIGNERSEAM", body.mr_signer_seam.hex()), ("SEAMATTRIBUTES", f"{body.seam_attributes:#018x}"),
        ("TDATTRIBUTES", f"{body.td_attributes:#018x}"),
        *((f"TDATTRIBUTES.{name}", "1" if body.td_attributes & bit else "0") for name, bit in _ATTRIBUTES.items()),
        ("XFAM", f"{body.xfam:#018x}"), ("MRTD", body.mr_td.hex()), ("MRCONFIGID", body.mr_config_id.hex()),
        ("MROWNER", body.mr_owner.hex()), ("MROWNERCONFIG", body.mr_owner_config.hex()),
        *((f"RTMR{number}", value.hex()) for number, value in enumerate(body.rtmr)),
        ("REPORTDATA", body.report_data.hex())]
    if body.tee_tcb_svn2 is not None and body.mr_service_td is not None:
        found += [("TEE_TCB_SVN2", body.tee_tcb_svn2.hex()), ("MRSERVICETD", body.mr_service_td.hex())]
    found += [("QE vendor id", quote.qe_vendor_id.hex()), ("QE MRENCLAVE", quote.qe.mr_enclave.hex()),
              ("QE MRSIGNER", quote.qe.mr_signer.hex()), ("QE ISVSVN", str(quote.qe.isv_svn))]
    if claims is None:
        return found
    tcb = claims.tcb
    since = [] if tcb.since is None else [("out of date since", f"{tcb.since:%Y-%m-%d}, the date of its TCB level")]
    instance = [] if claims.pck.instance is None else [("platform instance id", claims.pck.instance.hex())]
    return [*found, ("FMSPC", tcb.fmspc), ("PPID", claims.pck.ppid.hex()), *instance, ("TCB status", tcb.status),
            *since,
            ("SMT", {True: "on", False: "off", None: "not told"}[tcb.smt]),
            ("advisories", ", ".join(tcb.advisories) or "none"),
            ("tcbEvaluationDataNumber", str(tcb.evaluation_number)),
            ("TCB information issued", f"{tcb.issued:%Y-%m-%dT%H:%M:%SZ}"),
            ("TCB information valid until", f"{tcb.next_update:%Y-%m-%dT%H:%M:%SZ}"),
            ("PCK, SHA-256", claims.chain[0]), ("root, SHA-256", claims.chain[2])]


def warnings(quote: TdxQuote, claims: TdxClaims | None, at: datetime) -> list[str]:
    """List the warnings at a time that a reader must not overlook, even where everything is
    authentic."""
    found = []
    if quote.body.td_attributes & abi.DEBUG_GROUP:
        found.append("DEBUG: the host may debug or profile this TD. It keeps no secret from its operator.")
    if quote.body.td_attributes & abi.MIGRATABLE:
        found.append("MIGRATION: a migration TD may move this TD, and so see it.")
    if not quote.body.td_attributes & abi.SEPT_VE_DISABLE:
        found.append("SEPT_VE_DISABLE: it is not set, so that the host may inject exceptions on memory access.")
    if any(quote.body.mr_service_td or b""):
        found.append("SERVICE TD: this TD is bound to another, by MRSERVICETD, which may see or move it.")
    if claims is not None and claims.tcb.status != "UpToDate":
        found.append(f"TCB: Intel says {claims.tcb.status} of this platform.")
    ending = [] if claims is None else [ends for issued, ends in claims.tcb.lives if ends_soon(issued, ends, at)]
    if ending:
        found.append(f"COLLATERAL: a part of Intel's ends soon, on {min(ending):%Y-%m-%d}. {FETCH_DUE}.")
    return found
