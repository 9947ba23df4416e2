"""The judging half of SEV-SNP."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from appliance.attestation.case.expected import Expectations
from appliance.attestation.case.given import Means
from appliance.attestation.case.judge import AuthenticReport, Judge, by_time
from appliance.attestation.case.machine import CHIP, MachineId, Names
from appliance.attestation.case.measurements import DerivedMeasurements, Measurements
from appliance.attestation.case.record import Record
from appliance.attestation.case.terms import ClientTerms
from appliance.attestation.findings import Finding
from appliance.attestation.snp import layout
from appliance.attestation.snp.collecting.collector import LAUNCH
from appliance.attestation.snp.judging import abi, describe, validate, verify
from appliance.attestation.snp.judging.rules import FIELDS, QUIET, RULES
from appliance.attestation.snp.judging.validate import SnpExpectations
from appliance.attestation.snp.judging.verify import SnpClaims
from appliance.platforms import SNP
from appliance.policy.bulletins import lines
from appliance.policy.schema import Policy

KIND = "AMD SEV-SNP attestation report"


def authentic(record: Record, given: Means) -> SnpClaims:
    """Verify an SEV-SNP report; its claims are recorded whether they are proved or not. Raises as
    `snp.verify`."""
    at, place = given.time(SNP.name), len(record.warnings)
    parsed = abi.parse(given.raw)
    record.kind, record.hardware = f"{KIND}, version {parsed.version}", given.raw

    def say(proved: SnpClaims | None) -> None:
        record.claims["claims"] = describe.describe(parsed, proved)
        record.warnings[place:] = describe.warnings(parsed, proved, at)
        record.followed(given.tail)

    say(None)
    claims = verify.authenticate(parsed, given.collateral, at=at, roots=given.roots.amd)
    say(claims)
    record.names, record.authentic = names(claims), claims
    record.holds("signature", f"the {claims.signing_key.upper()} signed the report")
    record.holds("chain", f"its chain leads to the pinned root ARK-{claims.product}")
    record.holds("endorsement", "chip id, TCB and product line are those of the certificate")
    if claims.revocation is not None and claims.revocation.in_force(at):
        record.holds("revocation", f"no certificate is revoked as of {claims.revocation.this_update:%Y-%m-%d}")
    return claims


def names(claims: SnpClaims, _expected: Expectations | None = None) -> Names:
    """Return the chip's name. A VLEK is one key for many chips of a cloud, so that CHIP_ID beside
    its signature is the word of whoever has it."""
    if claims.signing_key != "vcek":
        return "a VLEK signed the report, which is a cloud's key and not a chip's"
    if claims.chip_id_masked:
        return "the host masks CHIP_ID"
    return (MachineId(CHIP, claims.report.chip_id),)


def _verify(record: Record, given: Means) -> AuthenticReport:
    found = authentic(record, given)
    return AuthenticReport(found.report.report_data, found.report.host_data, found)


def _validate(claims: SnpClaims, expected: Expectations, at: datetime) -> tuple[Finding, ...]:
    own: SnpExpectations = expected.own.get(SNP.name, SnpExpectations())
    if isinstance(own.known, DerivedMeasurements):
        own = expect(own.known.launched(claims.report.measurement), own)
    return validate.validate(claims, own, expected.hardware, at=at)


def _signer(claims: SnpClaims) -> str:
    return f"AMD SEV-SNP, {claims.product}, {claims.signing_key.upper()}"


def _recognise(data: bytes) -> str | None:
    version, algorithm = data[:4], layout.SIGNATURE_ALGO_AT
    begins = (int.from_bytes(version, "little") in layout.VERSIONS
              and data[algorithm[0]:algorithm[0] + algorithm[1]] == b"\x01\x00\x00\x00")
    return KIND if len(data) >= layout.REPORT_BYTES and begins else None


def expect(measurements: Measurements, expected: SnpExpectations | None = None) -> SnpExpectations:
    """`expected` with the image's launch digests; an image without any accepts no SEV-SNP report.
    """
    return replace(expected or SnpExpectations(), measurements=measurements.sev_snp_digests(),
                   rows=measurements.snp_rows(), known=measurements)


def _concluded(claims: SnpClaims, common: tuple[Finding, ...], own: tuple[Finding, ...],
               asked: ClientTerms) -> tuple[Finding, ...]:
    return tuple(_with_shapes(each, asked.measurements, claims.report.measurement) for each in (*common, *own))


def _with_shapes(finding: Finding, measurements: Measurements | None, digest: bytes) -> Finding:
    """Add to a launch digest that no shape of the image has: for which shapes it was predicted; and
    to a derived one: of which shape it is."""
    if finding.rule != "measurement" or measurements is None:
        return finding
    if finding.outcome == "fails":
        return replace(finding, detail=f"{finding.detail}; {measurements.launched(digest).launches()}")
    derived = finding.outcome == "holds" and isinstance(measurements, DerivedMeasurements)
    return replace(finding, detail=measurements.launched(digest).launches()) if derived else finding


def _remarks(policy: Policy) -> tuple[Finding, ...]:
    """Name each product line that a policy accepts although its root seed is out."""
    return tuple(Finding("root-seed", "not checked", f"the policy accepts {product}: {lines.ROOT_SEED_OUT[product]}")
                 for product in lines.accepted_without_root(policy))


JUDGE = Judge(
    _verify, by_time(_validate), _signer, LAUNCH.value, image=("measurement",),
    required=("measurement", "launch-policy", "revocation"), rules=RULES, recognise=_recognise, expect=expect,
    names=names, firmware="firmware",
    concluded=_concluded, remarks=_remarks, fields=FIELDS, quiet=QUIET)
