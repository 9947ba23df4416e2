"""The rules of SEV-SNP that no other platform has, in words."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from appliance.attestation.case.rule import Rule

_BLOCK = "tee.evidence.sev_snp"
FIELDS: Mapping[str, str] = MappingProxyType({  # the policy's field that a rule compares
    "product": f"{_BLOCK}.products", "signing-key": f"{_BLOCK}.signing_keys", "csp": f"{_BLOCK}.csp_ids",
    "guest-svn": f"{_BLOCK}.min_guest_svn", "single-socket": f"{_BLOCK}.single_socket", "cxl": f"{_BLOCK}.cxl",
    "aes256-xts": f"{_BLOCK}.aes256_xts", "rapl": f"{_BLOCK}.rapl_disabled", "alias-check": f"{_BLOCK}.alias_check",
    "guest-rapl": f"{_BLOCK}.guest_rapl_disabled", "page-swap": f"{_BLOCK}.page_swap_disabled",
    "tsme": f"{_BLOCK}.tsme", "ciphertext-hiding": f"{_BLOCK}.ciphertext_hiding", "ecc": f"{_BLOCK}.ecc",
    "tio": f"{_BLOCK}.tio", "guest-ciphertext-hiding": f"{_BLOCK}.guest_ciphertext_hiding",
    "iommu-write-safe": f"{_BLOCK}.iommu_write_safe",
    **dict.fromkeys(("tcb-reported", "tcb-current", "tcb-committed", "tcb-launch"), f"{_BLOCK}.min_tcb"),
    "launch-mitigations": f"{_BLOCK}.min_tcb.launch_mitigations", "api": f"{_BLOCK}.min_api",
    "current-mitigations": f"{_BLOCK}.min_tcb.current_mitigations", "id-key": f"{_BLOCK}.id_key_sha384",
    "report-version": f"{_BLOCK}.min_report_version", "author-key": f"{_BLOCK}.author_key_sha384",
    "committed-is-current": f"{_BLOCK}.committed_is_current"})
QUIET = frozenset({"report-data", "host-data", "family-id", "image-id", "id-key", "author-key"})

RULES = (
    Rule("product", "the chip is of a product line that the policy allows", "instance-identity"),
    Rule("firmware", "the guest was launched with a firmware that the measurements name", "executables", quiet=True),
    Rule("root-seed", "the keys of the chip's product line are known to its chips alone", "instance-identity"),
    Rule("alias-check", "memory was checked for aliases, if the policy demands it", "configuration"),
    Rule("tsme", "memory outside of guests is encrypted, if the policy demands it", "configuration"),
    Rule("ecc", "memory has error correction, if the policy demands it", "configuration"),
    Rule("iommu-write-safe", "the IOMMU's writes are safe, if the policy demands it", "configuration"),
    Rule("signing-key", "the report is signed by a kind of key that the policy allows", "instance-identity"),
    Rule("csp", "the key is one that AMD gave a cloud which the policy allows", "instance-identity", quiet=True),
    Rule("vmpl", "the report was asked for from a privilege level that the policy allows",
         "runtime-opaque", attack="wrong VMPL"),
    Rule("guest-svn", "the guest's security version is high enough", "executables", attack="downgrade"),
    Rule("guest-policy", "the guest policy has no bit that is unknown here", "configuration"),
    Rule("single-socket", "the guest is on one socket, if the policy demands it", "configuration"),
    Rule("cxl", "no CXL device holds guest memory, unless the policy allows it", "configuration"),
    Rule("aes256-xts", "memory encryption has 256 bits, if the policy demands it", "configuration"),
    Rule("rapl", "the power meter is off, if the policy demands it", "configuration"),
    Rule("ciphertext-hiding", "the host cannot read ciphertext, if the policy demands it", "runtime-opaque"),
    Rule("guest-ciphertext-hiding", "the guest policy itself demands ciphertext hiding, where it must",
         "runtime-opaque"),
    Rule("guest-rapl", "the guest policy itself demands that the power meter is off, where it must",
         "configuration"),
    Rule("page-swap", "the host can neither move nor swap pages of the guest, if the policy demands it",
         "runtime-opaque"),
    Rule("tio", "trusted devices are enabled on the host or not, as the policy demands", "configuration", quiet=True),
    Rule("tcb-reported", "the firmware that signed is new enough", "hardware", attack="downgrade"),
    Rule("tcb-current", "the firmware that runs is new enough", "hardware", attack="downgrade"),
    Rule("tcb-committed", "the firmware cannot be rolled back below what is new enough",
         "hardware", attack="downgrade"),
    Rule("tcb-launch", "the firmware was new enough when the guest was launched", "hardware", attack="downgrade"),
    Rule("launch-mitigations", "what the policy demands was mended when the guest was launched",
         "hardware", attack="downgrade", quiet=True),
    Rule("current-mitigations", "what the policy demands is mended now", "hardware", attack="downgrade", quiet=True),
    Rule("report-version", "the report's version is high enough", "hardware", attack="downgrade"),
    Rule("committed-is-current", "the firmware that runs cannot be rolled back, if the policy demands it",
         "hardware", attack="downgrade"),
    Rule("api", "the firmware's interface is new enough", "hardware", attack="downgrade", quiet=True),
    Rule("revocation", "no certificate of the chain is revoked, by a list that is in force",
         "hardware", attack="stale revocation list",
         hint="fetch AMD's list into the folder of --collateral: appliance collateral fetch, or GET "
              "https://kdsintf.amd.com/vcek/v1/LINE/crl (LINE: Milan, Genoa, Turin; of a VLEK "
              "/vlek/v1/LINE/crl); or do without: --without-revocation"),
)
