"""An SEV-SNP report's claims in AMD's terms, for people and for JSON."""

from __future__ import annotations

from datetime import datetime

from appliance.attestation.snp.judging import kds
from appliance.attestation.snp.judging.abi import HOST_VMPL, UNSIGNED, VCEK, VLEK, SnpReport, SnpTcb
from appliance.attestation.snp.judging.bulletins import lacking
from appliance.attestation.snp.judging.verify import SnpClaims
from appliance.attestation.x509.judging.requests import FETCH_DUE
from appliance.policy.bulletins import lines

Claims = list[tuple[str, str]]
_KEYS = {VCEK: "VCEK", VLEK: "VLEK", UNSIGNED: "none"}


def _yes(fact: bool) -> str:
    return "1" if fact else "0"


def _dotted(version: tuple[int, int, int]) -> str:
    return f"{version[0]}.{version[1]} build {version[2]}"


def _policy(report: SnpReport) -> Claims:
    policy = report.policy
    return [
        ("POLICY", f"{policy.raw:#x}"), ("POLICY.ABI", f"{policy.abi[0]}.{policy.abi[1]}"),
        ("POLICY.SMT", _yes(policy.smt)), ("POLICY.MIGRATE_MA", _yes(policy.migration_agent)),
        ("POLICY.DEBUG", _yes(policy.debug)), ("POLICY.SINGLE_SOCKET", _yes(policy.single_socket)),
        ("POLICY.CXL_ALLOW", _yes(policy.cxl)), ("POLICY.MEM_AES_256_XTS", _yes(policy.aes256_xts)),
        ("POLICY.RAPL_DIS", _yes(policy.rapl_disabled)),
        ("POLICY.CIPHERTEXT_HIDING_DRAM", _yes(policy.ciphertext_hiding)),
        ("POLICY.PAGE_SWAP_DISABLE", _yes(policy.page_swap_disabled)), ("POLICY, unknown bits", f"{policy.unknown:#x}")]


def _platform(report: SnpReport) -> Claims:
    platform = report.platform_info
    return [
        ("PLATFORM_INFO", f"{platform.raw:#x}"), ("PLATFORM_INFO.SMT_EN", _yes(platform.smt)),
        ("PLATFORM_INFO.TSME_EN", _yes(platform.tsme)), ("PLATFORM_INFO.ECC_EN", _yes(platform.ecc)),
        ("PLATFORM_INFO.RAPL_DIS", _yes(platform.rapl_disabled)),
        ("PLATFORM_INFO.CIPHERTEXT_HIDING_DRAM_EN", _yes(platform.ciphertext_hiding)),
        ("PLATFORM_INFO.ALIAS_CHECK_COMPLETE", _yes(platform.alias_check_complete)),
        ("PLATFORM_INFO.IOMMU_WRITE_SAFE", _yes(platform.iommu_write_safe)),
        ("PLATFORM_INFO.TIO_EN", _yes(platform.tio)), ("PLATFORM_INFO, unknown bits", f"{platform.unknown:#x}")]


def _tcbs(report: SnpReport, claims: SnpClaims | None) -> Claims:
    """The four TCBs, decoded once the product line is proved; raw before."""
    if claims is None:
        return [("CURRENT_TCB", report.current_tcb.hex()), ("REPORTED_TCB", report.reported_tcb.hex()),
                ("COMMITTED_TCB", report.committed_tcb.hex()), ("LAUNCH_TCB", report.launch_tcb.hex())]

    def shown(tcb: SnpTcb) -> str:
        return ", ".join(f"{name} {version}" for name, version in tcb.components().items())

    return [("CURRENT_TCB", shown(claims.current_tcb)), ("REPORTED_TCB", shown(claims.reported_tcb)),
            ("COMMITTED_TCB", shown(claims.committed_tcb)), ("LAUNCH_TCB", shown(claims.launch_tcb))]


def _newer(report: SnpReport) -> Claims:
    """Describe the fields that later versions of the report added."""
    found: Claims = []
    if report.cpuid is not None:
        family, model, stepping = report.cpuid
        found += [("CPUID_FAM_ID", f"{family:#04x}"), ("CPUID_MOD_ID", f"{model:#04x}"),
                  ("CPUID_STEP", f"{stepping:#04x}")]
    if report.launch_mit_vector is not None and report.current_mit_vector is not None:
        found += [("LAUNCH_MIT_VECTOR", f"{report.launch_mit_vector:#x}"),
                  ("CURRENT_MIT_VECTOR", f"{report.current_mit_vector:#x}")]
    return found


def describe(report: SnpReport, claims: SnpClaims | None) -> Claims:
    """Every field of a report: name and value. `claims` are at hand once the report is proved
    authentic."""
    vmpl = "the host" if report.vmpl == HOST_VMPL else str(report.vmpl)
    return [
        ("VERSION", str(report.version)), ("GUEST_SVN", str(report.guest_svn)), *_policy(report),
        ("FAMILY_ID", report.family_id.hex()), ("IMAGE_ID", report.image_id.hex()), ("VMPL", vmpl),
        ("SIGNATURE_ALGO", "1 (ECDSA P-384 with SHA-384)"), *_platform(report),
        ("AUTHOR_KEY_EN", _yes(report.key_info.author_key)), ("MASK_CHIP_KEY", _yes(report.key_info.mask_chip_key)),
        ("SIGNING_KEY", _KEYS[report.key_info.signing_key]),
        ("REPORT_DATA", report.report_data.hex()), ("MEASUREMENT", report.measurement.hex()),
        ("HOST_DATA", report.host_data.hex()), ("ID_KEY_DIGEST", report.id_key_digest.hex()),
        ("AUTHOR_KEY_DIGEST", report.author_key_digest.hex()), ("REPORT_ID", report.report_id.hex()),
        ("REPORT_ID_MA", report.report_id_ma.hex()), *_tcbs(report, claims), *_newer(report),
        ("CHIP_ID", report.chip_id.hex()), ("CURRENT_VERSION", _dotted(report.current_version)),
        ("COMMITTED_VERSION", _dotted(report.committed_version)), *_chain(claims)]


def _chain(claims: SnpClaims | None) -> Claims:
    if claims is None:
        return []
    leaf, authority, root = claims.chain
    kind = claims.signing_key.upper()
    return [("product line", claims.product), *([("CSP_ID", claims.csp_id)] if claims.csp_id else []),
            (f"{kind}, SHA-256", leaf), ("ASK or ASVK, SHA-256", authority), ("ARK, SHA-256", root),
            ("chain valid until", f"{claims.not_after:%Y-%m-%dT%H:%M:%SZ}")]


def warnings(report: SnpReport, claims: SnpClaims | None, at: datetime) -> list[str]:
    """List the warnings at a time that a reader must not overlook, even where everything is
    authentic."""
    found = []
    if report.policy.debug:
        found.append("DEBUG: the guest policy lets the host decrypt this guest. It keeps no secret from its operator.")
    if report.vmpl == HOST_VMPL:
        found.append("HOST: the host asked for this report, not the guest; REPORT_DATA is the host's choice.")
    if report.policy.migration_agent:
        found.append("MIGRATION: a migration agent may move this guest, and so see it.")
    if report.policy.unknown:
        found.append("POLICY: bits are set that are not known here, or one that must be is not.")
    if not any(report.chip_id) and report.key_info.signing_key == VCEK:
        found.append("CHIP_ID: masked; the host hides which chip this is.")
    if claims is not None and claims.product.lower() in lines.ROOT_SEED_OUT:
        found.append(f"{claims.product.upper()}: {lines.ROOT_SEED_OUT[claims.product.lower()]}.")
    if claims is not None and (lack := lacking(claims)):
        found.append(f"BULLETINS: this machine shows less than they ask for. {'. '.join(lack)}.")
    if claims is not None and (claims.revocation is None or not claims.revocation.in_force(at)):
        ended = "" if claims.revocation is None else f"; one ended on {claims.revocation.next_update:%Y-%m-%d}"
        found.append(f"REVOCATION: not checked; no list that is in force was among the collateral{ended}. "
                     f"AMD serves it: GET {kds.revocation_list(claims.signing_key, claims.product).url}.")
    if claims is not None and claims.revocation is not None and claims.revocation.in_force(at) and (
            claims.revocation.ends_soon(at)):
        found.append(f"REVOCATION: the list ends soon, on {claims.revocation.next_update:%Y-%m-%d}. {FETCH_DUE}.")
    return found
