"""Policy on SEV-SNP claims: whether an authentic report is one that the deployment policy accepts.

Every rule is judged and every failure told. Genuine is not acceptable: a report whose guest policy
allows debugging is signed by AMD's keys all the same, and fails here.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from appliance.attestation.findings import Finding, judged, one_of, same
from appliance.attestation.snp.abi import HOST_VMPL, SnpTcb
from appliance.attestation.snp.verify import SnpClaims
from appliance.policy.schema.platform import Evidence, LineTcb, SevSnp


@dataclass(frozen=True)
class SnpExpected:
    """The expectations of a report beyond the policy's `evidence` block. None is not checked.

    Sizes in bytes: `report_data` 64, `host_data` 32, each of `measurements` 48, `family_id` and
    `image_id` 16.
    """

    report_data: bytes | None = None
    host_data: bytes | None = None
    measurements: Collection[bytes] | None = None
    family_id: bytes | None = None
    image_id: bytes | None = None


def _version(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor or 0)


def _tcb(rule: str, found: SnpTcb, floor: LineTcb | None) -> Finding:
    """Every component for itself: a high one does not make up for a low one. Without a floor
    nothing is too low."""
    if floor is None:
        return judged(rule, True)
    wanted = {"fmc": floor.fmc, "bootloader": floor.bootloader, "tee": floor.tee, "snp": floor.snp,
              "microcode": floor.microcode}
    low = [f"{name} {version} is below {wanted[name]}" for name, version in found.components().items()
           if version < wanted[name]]
    return judged(rule, not low, "; ".join(low))


def _guest_policy(claims: SnpClaims, policy: Evidence) -> list[Finding]:
    """Judge what the guest's owner let the host do."""
    guest, platform, snp = claims.report.policy, claims.report.platform_info, policy.sev_snp
    return [
        judged("guest-policy", guest.unknown == 0,
               f"bits that are not known: {guest.unknown:#x}" if guest.unknown else ""),
        judged("debug", policy.debug or not guest.debug, "the host may decrypt the guest" if guest.debug else ""),
        judged("migration", policy.migration or not (guest.migration_agent or _has_agent(claims)),
               "a migration agent may move the guest" if guest.migration_agent else ""),
        judged("smt", policy.smt or not (guest.smt or platform.smt),
               f"SMT is {_word(guest.smt, 'allowed', 'not allowed')} by the guest policy and "
               f"{_word(platform.smt, 'on', 'off')} on the host"),
        judged("single-socket", guest.single_socket or not snp.single_socket,
               "" if guest.single_socket else "the guest may run on several sockets"),
        judged("cxl", snp.cxl or not guest.cxl, "CXL devices may hold guest memory" if guest.cxl else ""),
        judged("aes256-xts", guest.aes256_xts or not snp.aes256_xts,
               "" if guest.aes256_xts else "the guest policy does not demand AES-256-XTS"),
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
    ]


def _has_agent(claims: SnpClaims) -> bool:
    return claims.report.report_id_ma != b"\xff" * 32 and any(claims.report.report_id_ma)


def _word(fact: bool, yes: str, no: str) -> str:
    return yes if fact else no


def _firmware(claims: SnpClaims, snp: SevSnp) -> list[Finding]:
    """Versions and security versions: reported, current, committed and at launch."""
    report = claims.report
    floor = next((each for each in snp.floors if each.product == claims.product.lower()), None)
    findings = [_tcb("tcb-reported", claims.reported_tcb, floor), _tcb("tcb-current", claims.current_tcb, floor),
                _tcb("tcb-committed", claims.committed_tcb, floor), _tcb("tcb-launch", claims.launch_tcb, floor)]
    if snp.min_api is None:
        return [*findings, Finding("api", "not checked")]
    lowest = min(report.current_version[:2], report.committed_version[:2])
    shown = f"firmware {lowest[0]}.{lowest[1]}, at least {snp.min_api}"
    return [*findings, judged("api", lowest >= _version(snp.min_api), shown)]


def _identity(claims: SnpClaims, policy: Evidence) -> list[Finding]:
    """Which chip line, which key, which privilege level, whose ID block."""
    report, snp = claims.report, policy.sev_snp
    level = "the host" if report.vmpl == HOST_VMPL else f"VMPL {report.vmpl}"
    return [
        judged("product", claims.product.lower() in snp.products,
               f"{claims.product}, allowed: {', '.join(snp.products)}"),
        judged("signing-key", claims.signing_key in snp.signing_keys,
               f"{claims.signing_key}, allowed: {', '.join(snp.signing_keys)}"),
        judged("vmpl", report.vmpl <= policy.vmpl, f"asked for by {level}, at most VMPL {policy.vmpl}"),
        judged("guest-svn", report.guest_svn >= snp.min_guest_svn,
               f"{report.guest_svn}, at least {snp.min_guest_svn}"),
        same("id-key", report.id_key_digest, _hexed(snp.id_key_sha384)),
        same("author-key", report.author_key_digest if report.key_info.author_key else None,
             _hexed(snp.author_key_sha384)),
    ]


def _hexed(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text.removeprefix("sha384:"))


def _revocation(claims: SnpClaims, policy: Evidence, at: datetime) -> Finding:
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


def waived(finding: Finding) -> Finding:
    """A finding on revocation for someone who does without: an old list is never worse than none.
    """
    if finding.rule != "revocation" or finding.outcome != "fails":
        return finding
    return Finding(finding.rule, "not checked", finding.detail)


def validate(claims: SnpClaims, expected: SnpExpected, policy: Evidence, *, at: datetime) -> tuple[Finding, ...]:
    """Judge every rule of `policy` and every expectation on authentic claims."""
    report = claims.report
    return (
        one_of("measurement", report.measurement, expected.measurements),
        same("report-data", report.report_data, expected.report_data),
        same("host-data", report.host_data, expected.host_data),
        same("family-id", report.family_id, expected.family_id),
        same("image-id", report.image_id, expected.image_id),
        *_identity(claims, policy), *_guest_policy(claims, policy), *_firmware(claims, policy.sev_snp),
        _revocation(claims, policy, at),
    )
