"""Policy on SEV-SNP claims: whether an authentic report is one that the deployment policy accepts.

Every rule is judged and every failure told. Genuine is not acceptable: a report whose guest policy
allows debugging is signed by AMD's keys all the same, and fails here.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from appliance.attestation.case.measurements import Measurements
from appliance.attestation.findings import Finding, judged, one_of, same
from appliance.attestation.google import rule
from appliance.attestation.measured.second import SnpRow
from appliance.attestation.snp.judging import bulletins
from appliance.attestation.snp.judging.abi import HOST_VMPL, SnpTcb
from appliance.attestation.snp.judging.verify import SnpClaims
from appliance.attestation.trust import amd
from appliance.policy.schema.platform import ISSUED_AS, LineTcb, Requirements, SevSnp

FIRMWARE_ALONE = "the launch digest covers the firmware alone: what it booted is not in it"
_SHOWN_FROM = 5  # the version of reports with mitigation vectors, PAGE_SWAP_DISABLE and TIO_EN (56860, 1.58)


@dataclass(frozen=True)
class SnpExpectations:
    """The expectations of a report beyond the policy's `evidence` block. None is not checked.

    Sizes in bytes: `report_data` 64, `host_data` 32, each of `measurements` 48, `family_id` and
    `image_id` 16. `rows` are those of the measurements; some cover a firmware alone, and say
    nothing of an image. `known` is the file that they are of.
    """

    report_data: bytes | None = None
    host_data: bytes | None = None
    measurements: Collection[bytes] | None = None
    family_id: bytes | None = None
    image_id: bytes | None = None
    rows: tuple[SnpRow, ...] = ()
    known: Measurements | None = None


def _version(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor or 0)


def _launched(measurement: bytes, expected: SnpExpectations, policy: Requirements) -> list[Finding]:
    """Judge the launch digest. A digest of firmware alone never satisfies the demand for an image.
    """
    rows = [row for row in expected.rows if row.launch_digest == measurement.hex()]
    endorsed = rule.judge(rows, policy.gce)
    if not rows or any(row.image for row in rows):
        return [one_of("measurement", measurement, expected.measurements), endorsed]
    told = " or ".join(f"{row.vmm}, {row.vcpus} vCPUs, source {row.source}" for row in rows)
    return [Finding("measurement", "not checked", FIRMWARE_ALONE), Finding("firmware", "holds", told), endorsed]


def _tcb(rule: str, found: SnpTcb, floor: LineTcb | None) -> Finding:
    """Every component for itself: a high one does not make up for a low one. Without a floor
    nothing is too low. A component that a line lacks cannot be shown; the FMC may be lacking, since
    one floor of schema 1 counts for lines with and without it."""
    if floor is None:
        return judged(rule, True)
    wanted = {"fmc": floor.fmc, "bootloader": floor.bootloader, "tee": floor.tee, "snp": floor.snp,
              "microcode": floor.microcode}
    shown = found.components()
    low = [f"{name} {version} is below {wanted[name]}" for name, version in shown.items() if version < wanted[name]]
    low += [f"{name} cannot be shown by this line, at least {least}" for name, least in wanted.items()
            if least and name not in shown and name != "fmc"]
    return judged(rule, not low, "; ".join(low))


def _mitigations(rule: str, found: int | None, wanted: str | None, version: int) -> Finding:
    """Every bit that is wanted must be there; others may be."""
    if wanted is None:
        return Finding(rule, "not checked")
    if found is None:
        return judged(rule, False, f"{_unshown(version)}, wanted: {wanted}")
    missing = int(wanted, 16) & ~found
    return judged(rule, not missing, f"found {found:#x}, which lacks {missing:#x} of {wanted}" if missing else "")


def _unshown(version: int) -> str:
    return f"cannot be shown by a report of version {version}, only from version {_SHOWN_FROM} on"


def _smt(claims: SnpClaims, policy: Requirements) -> Finding:
    """A guest policy without SMT is launched only where it is off, so that either is enough. In
    schema 1 both had to say so."""
    guest, platform = claims.report.policy.smt, claims.report.platform_info.smt
    holds = (policy.smt or not (guest and platform)) and (policy.smt_of_either or not (guest or platform))
    return judged("smt", holds, f"SMT is {_word(guest, 'allowed', 'not allowed')} by the guest policy and "
                  f"{_word(platform, 'on', 'off')} on the host")


def _guest_policy(claims: SnpClaims, policy: Requirements) -> list[Finding]:
    """Judge what the guest's owner let the host do."""
    guest, snp, version = claims.report.policy, policy.sev_snp, claims.report.version
    return [
        judged("guest-policy", guest.unknown == 0,
               f"bits that are not known: {guest.unknown:#x}" if guest.unknown else ""),
        judged("debug", policy.debug or not guest.debug, "the host may decrypt the guest" if guest.debug else ""),
        judged("migration", policy.migration or not (guest.migration_agent or _has_agent(claims)),
               "a migration agent may move the guest" if guest.migration_agent else ""),
        _smt(claims, policy),
        judged("single-socket", guest.single_socket or not snp.single_socket,
               "" if guest.single_socket else "the guest may run on several sockets"),
        judged("cxl", snp.cxl or not guest.cxl, "CXL devices may hold guest memory" if guest.cxl else ""),
        judged("aes256-xts", guest.aes256_xts or not snp.aes256_xts,
               "" if guest.aes256_xts else "the guest policy does not demand AES-256-XTS"),
        judged("guest-ciphertext-hiding", guest.ciphertext_hiding or not snp.guest_ciphertext_hiding,
               "" if guest.ciphertext_hiding else "the guest policy does not demand ciphertext hiding"),
        judged("guest-rapl", guest.rapl_disabled or not snp.guest_rapl_disabled,
               "" if guest.rapl_disabled else "the guest policy does not demand that the power meter is off"),
        judged("page-swap", guest.page_swap_disabled or not snp.page_swap_disabled,
               "" if guest.page_swap_disabled else "the host may move and swap pages of the guest"
               if version >= _SHOWN_FROM else _unshown(version)),
    ]


def _platform(claims: SnpClaims, snp: SevSnp) -> list[Finding]:
    """Judge how the machine is set up."""
    platform = claims.report.platform_info
    return [
        judged("rapl", platform.rapl_disabled or not snp.rapl_disabled,
               "" if platform.rapl_disabled else "the power meter is on"),
        judged("ciphertext-hiding", platform.ciphertext_hiding or not snp.ciphertext_hiding,
               "" if platform.ciphertext_hiding else "the host can read ciphertext in DRAM"),
        judged("alias-check", platform.alias_check_complete or not snp.alias_check,
               "" if platform.alias_check_complete else "memory was not checked for aliases since the last reset"),
        judged("tsme", platform.tsme or not snp.tsme,
               "" if platform.tsme else "memory outside of guests is not encrypted"),
        judged("ecc", platform.ecc or not snp.ecc, "" if platform.ecc else "memory has no error correction"),
        judged("iommu-write-safe", platform.iommu_write_safe or not snp.iommu_write_safe,
               "" if platform.iommu_write_safe else "the firmware does not report IOMMU_WRITE_SAFE"),
        _tio(platform.tio, snp.tio, claims.report.version),
    ]


def _tio(found: bool, wanted: bool | None, version: int) -> Finding:
    if wanted is None:
        return Finding("tio", "not checked")
    if version < _SHOWN_FROM:
        return judged("tio", False, _unshown(version))
    return judged("tio", found == wanted, f"SEV-TIO is {_word(found, 'on', 'off')} on the host")


def _has_agent(claims: SnpClaims) -> bool:
    return claims.report.report_id_ma != b"\xff" * 32 and any(claims.report.report_id_ma)


def _word(fact: bool, yes: str, no: str) -> str:
    return yes if fact else no


def _firmware(claims: SnpClaims, snp: SevSnp) -> list[Finding]:
    """Versions and security versions: reported, current, committed and at launch."""
    report, floor = claims.report, _floor(claims, snp)
    launch, current = (floor.launch_mitigations, floor.current_mitigations) if floor else (None, None)
    findings = [
        _tcb("tcb-reported", claims.reported_tcb, floor), _tcb("tcb-current", claims.current_tcb, floor),
        _tcb("tcb-committed", claims.committed_tcb, floor), _tcb("tcb-launch", claims.launch_tcb, floor),
        _mitigations("launch-mitigations", report.launch_mit_vector, launch, report.version),
        _mitigations("current-mitigations", report.current_mit_vector, current, report.version),
        judged("report-version", report.version >= snp.min_report_version,
               f"{report.version}, at least {snp.min_report_version}"),
        _committed(claims, snp),
    ]
    if snp.min_api is None:
        return [*findings, Finding("api", "not checked")]
    lowest = min(report.current_version[:2], report.committed_version[:2])
    shown = f"firmware {lowest[0]}.{lowest[1]}, at least {snp.min_api}"
    return [*findings, judged("api", lowest >= _version(snp.min_api), shown)]


def _floor(claims: SnpClaims, snp: SevSnp) -> LineTcb | None:
    """The policy's block for the CPU's own line, else the one for the line whose keys it has."""
    blocks = {each.product: each for each in snp.floors}
    return next((blocks[line] for line in _lines(claims) if line in blocks), None)


def _lines(claims: SnpClaims) -> tuple[str, ...]:
    """The product lines that a report is of: by its CPU, where it tells, and by its keys."""
    cpu = claims.report.cpuid
    line = None if cpu is None else amd.line_of(cpu[0], cpu[1])
    product = claims.product.lower()
    return (line.lower(), product) if line and ISSUED_AS.get(line.lower()) == product else (product,)


def _committed(claims: SnpClaims, snp: SevSnp) -> Finding:
    """The firmware that runs cannot be rolled back if it is the committed one."""
    report = claims.report
    apart = [f"{name} {current} is not the committed {committed}" for name, current, committed in (
        ("TCB", _listed(claims.current_tcb), _listed(claims.committed_tcb)),
        ("firmware", _dotted(report.current_version), _dotted(report.committed_version))) if current != committed]
    same_tcb = report.current_tcb == report.committed_tcb
    return judged("committed-is-current", (same_tcb and not apart) or not snp.committed_is_current, "; ".join(apart))


def _listed(tcb: SnpTcb) -> str:
    return "/".join(f"{name} {version}" for name, version in tcb.components().items())


def _dotted(version: tuple[int, int, int]) -> str:
    return f"{version[0]}.{version[1]} build {version[2]}"


def _csp(claims: SnpClaims, wanted: Collection[str]) -> Finding:
    """Only a VLEK's certificate names a cloud."""
    if not wanted:
        return Finding("csp", "not checked")
    if claims.csp_id is None:
        return judged("csp", False, f"cannot be shown by a VCEK, which names no cloud, allowed: {', '.join(wanted)}")
    return judged("csp", claims.csp_id in wanted, f"{claims.csp_id}, allowed: {', '.join(wanted)}")


def _bulletins(claims: SnpClaims) -> Finding:
    """Bulletins that ask for more than the policy. It never fails, since the policy decides."""
    told = [*bulletins.lacking(claims), *(f"{name}: no report can show that it is mended"
                                          for name in bulletins.unseen(claims))]
    return Finding("bulletins", "not checked" if told else "holds", "; ".join(told))


def _identity(claims: SnpClaims, policy: Requirements) -> list[Finding]:
    """Which chip line, which key, which privilege level, whose ID block."""
    report, snp = claims.report, policy.sev_snp
    level = "the host" if report.vmpl == HOST_VMPL else f"VMPL {report.vmpl}"
    lines = _lines(claims)
    shown = claims.product if len(lines) == 1 else f"{lines[0].title()} with the keys of {claims.product}"
    return [
        judged("product", any(each in snp.products for each in lines),
               f"{shown}, allowed: {', '.join(snp.products)}"),
        judged("signing-key", claims.signing_key in snp.signing_keys,
               f"{claims.signing_key}, allowed: {', '.join(snp.signing_keys)}"),
        _csp(claims, snp.csp_ids),
        judged("vmpl", report.vmpl <= policy.vmpl, f"asked for by {level}, at most VMPL {policy.vmpl}"),
        judged("guest-svn", report.guest_svn >= snp.min_guest_svn,
               f"{report.guest_svn}, at least {snp.min_guest_svn}"),
        same("id-key", report.id_key_digest, _hexed(snp.id_key_sha384)),
        same("author-key", report.author_key_digest if report.key_info.author_key else None,
             _hexed(snp.author_key_sha384)),
    ]


def _hexed(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text.removeprefix("sha384:"))


def _revocation(claims: SnpClaims, policy: Requirements, at: datetime) -> Finding:
    found = claims.revocation
    if found is None:
        return Finding("revocation", "not checked", "no revocation list was at hand")
    told = f"the list of {found.this_update:%Y-%m-%d}"
    if not found.in_force(at):
        return judged("revocation", False, f"{told} has ended, on {found.next_update:%Y-%m-%d}")
    soon = ", which is soon: fetch the next one" if found.ends_soon(at) else ""
    age, limit = at - found.this_update, policy.sev_snp.max_revocation_age_ms
    return judged("revocation", limit is None or age <= timedelta(milliseconds=limit),
                  f"{told} is {age.days} days old, in force until {found.next_update:%Y-%m-%d}{soon}"
                  + ("" if limit is None else f"; the policy takes {timedelta(milliseconds=limit).days} days at most"))


def validate(claims: SnpClaims, expected: SnpExpectations, policy: Requirements, *,
             at: datetime) -> tuple[Finding, ...]:
    """Judge every rule of `policy` and every expectation on authentic claims."""
    report = claims.report
    return (
        *_launched(report.measurement, expected, policy),
        same("report-data", report.report_data, expected.report_data),
        same("host-data", report.host_data, expected.host_data),
        same("family-id", report.family_id, expected.family_id),
        same("image-id", report.image_id, expected.image_id),
        *_identity(claims, policy), *_guest_policy(claims, policy),
        *_platform(claims, policy.sev_snp), *_firmware(claims, policy.sev_snp),
        _bulletins(claims), _revocation(claims, policy, at),
    )
