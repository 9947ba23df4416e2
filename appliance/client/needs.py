"""The requests that verifying a piece of evidence needs: computed from its bytes, of which nothing
is believed yet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from cryptography import x509

from appliance import platforms
from appliance.attestation.case import certified, reading
from appliance.attestation.google import requests
from appliance.attestation.judge import recognise
from appliance.attestation.snp import table as snp_table
from appliance.attestation.snp.judging import abi as snp_abi
from appliance.attestation.snp.judging import certificate, kds, verify
from appliance.attestation.snp.judging import judge as snp_judge
from appliance.attestation.snp.judging.abi import SnpReport
from appliance.attestation.tdx import abi as tdx_abi
from appliance.attestation.tdx.judging import judge as tdx_judge
from appliance.attestation.tdx.judging import pcs
from appliance.attestation.tpm.judging import azure
from appliance.attestation.tpm.judging import judge as tpm_judge
from appliance.attestation.x509 import walks
from appliance.attestation.x509.judging import dice
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.attestation.x509.judging.requests import Request
from appliance.errors import UnsupportedEvidenceError


@dataclass(frozen=True)
class Needs:
    """`wanted`: groups of requests, of each of which one suffices; where several have alternatives,
    these are in the same order: that of the product lines. `remarks`: what no request can fetch,
    and why."""

    kind: str
    wanted: tuple[tuple[Request, ...], ...]
    remarks: tuple[str, ...] = ()

    def all(self) -> list[Request]:
        """Every request."""
        return [request for group in self.wanted for request in group]


def of(data: bytes, *, early: bool = False, google: bool = False) -> Needs:
    """The requests that evidence needs; with `early`, for Intel's next standard documents, with
    `google`, also for Google's endorsement of the firmware. Raises AttestationError where it is
    malformed, or of a kind that needs none."""
    found = _of(data, early=early)
    if google:
        launch = launch_value(data)
        asked = requests.of_tdx(launch) if found.kind.startswith(tdx_judge.KIND) else requests.of_snp(launch)
        found = replace(found, wanted=(*found.wanted, *((each,) for each in asked)))
    if early and not any(request.kind == "json" for request in found.all()):
        raise UnsupportedEvidenceError(
            f"{found.kind}: only Intel has documents of an early update", code="collateral-none",
            hint="without --update early the standard ones are fetched")
    return found


def launch_value(data: bytes) -> bytes:
    """MRTD or launch digest of evidence, of which nothing is verified."""
    kind = recognise.recognise(data)
    if kind == recognise.APPLIANCE:
        data = reading.parse(data).report_bytes()
        kind = recognise.recognise(data)
    if kind == tdx_judge.KIND:
        return tdx_abi.parse(tdx_abi.split(data)[0]).body.mr_td
    if kind == snp_judge.KIND:
        return snp_abi.parse(snp_table.split(data)[0]).measurement
    raise UnsupportedEvidenceError(
        f"{kind or 'not recognised as evidence'}: Google endorses firmware of TDX quotes and SEV-SNP reports",
        code="collateral-none", hint="without --gce the vendor's own documents are fetched")


def _of(data: bytes, *, early: bool) -> Needs:
    kind = recognise.recognise(data)
    if kind == snp_judge.KIND:
        raw, table, _ = snp_table.split(data)
        return _snp(raw, table.values())
    if kind == tpm_judge.AZURE:
        report = azure.parse(azure.split(data)[0])
        if report.kind == azure.SNP:
            return _snp(report.hardware, ())
        raise UnsupportedEvidenceError("Azure report: a TDREPORT, which needs a TDX quote of it",
                                       code="collateral-none", hint="name the TDX quote: what it needs is fetched")
    if kind == tdx_judge.KIND:
        return _tdx(data, early=early)
    if kind == recognise.CERTIFICATE and dice.holds_evidence(data):
        return _of(certified.parse(data).evidence.to_json() if certified.is_ours(data) else dice.parse(data).quote,
                   early=early)
    if kind == recognise.APPLIANCE:
        parsed = reading.parse(data)
        if parsed.platform == platforms.SNP.name:
            return _snp(parsed.report_bytes(), reading.collateral_of(parsed))
        if parsed.platform == platforms.TDX.name:
            return _tdx(parsed.report_bytes(), early=early)
        kind = f"{kind}, platform {parsed.platform}"
    raise UnsupportedEvidenceError(
        f"{kind or 'not recognised as evidence'}: no vendor's service has collateral for it", code="collateral-none",
        hint="known: SEV-SNP reports, Azure's reports, TDX quotes, certificates with evidence, the appliance's own")


def _snp(raw: bytes, carried: Iterable[bytes]) -> Needs:
    report = snp_abi.parse(raw)
    kind = f"{snp_judge.KIND}, version {report.version}"
    key = "vlek" if report.key_info.signing_key == snp_abi.VLEK else "vcek"
    leaf, remarks = tuple(kds.leaf_requests(report)), []
    lines = kds.product_lines(report)
    at_hand = _carried_leaf(report, Collateral().with_items(carried, "evidence"))
    if at_hand is not None:
        leaf, remarks = (), [f"the {key.upper()} came with the evidence"]
        lines = (certificate.parse(at_hand).product,)
    elif not leaf:
        remarks = [kds.leaf_hint(report)]
    rest = [tuple(each(key, line) for line in lines) for each in (kds.chain, kds.revocation_list)]
    if not leaf:  # then none tells the product line
        rest = [(request,) for group in rest for request in group]
    return Needs(kind, (*((leaf,) if leaf else ()), *rest), tuple(remarks))


def _carried_leaf(report: SnpReport, carried: Collateral) -> x509.Certificate | None:
    return next((each for each in carried.certificates if verify.signed_by(report, each)), None)


def _tdx(raw: bytes, *, early: bool) -> Needs:
    quote = tdx_abi.parse(tdx_abi.split(raw)[0])
    chain = walks.load(quote.chain.rstrip(b"\x00"), "TDX quote")
    found = pcs.quote_requests(chain, early=early)
    remarks = () if pcs.fmspc(chain[0]) else (
        "the PCK certificate names no platform (FMSPC), so no TCB information can be asked for",)
    return Needs(f"{tdx_judge.KIND}, version {quote.version}", tuple((each,) for each in found), remarks)


def explained(needs: Needs) -> str:
    """The requests as a script for a shell, each with its reason."""
    lines = [f"# {needs.kind}", *(f"# {remark}" for remark in needs.remarks)]
    for group in needs.wanted:
        if len(group) > 1:
            lines.append("# one of the next will answer: the report does not tell the product line")
        for request in group:
            lines += [f"# {request.why}", request.curl()]
    return "\n".join(lines)


def as_json(request: Request) -> dict[str, object]:
    """A request for programs."""
    return {"url": request.url, "file": request.file, "why": request.why,
            "chain_header": request.chain_headers[0] if request.chain_headers else None, "curl": request.curl()}


