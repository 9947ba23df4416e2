"""The blocks on the appliance itself: `appliance`, `tee`, `state`, `approvals`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

from appliance.platforms import NAMES, names_in
from appliance.policy.schema.base import Block, Enforcers, Field
from appliance.policy.schema.identifiers import (
    ADVISORY,
    API_VERSION,
    CSP_ID,
    DEVICE,
    MITIGATIONS,
    NAME,
    TEE_TCB_SVN,
    XFAM,
    FreeText,
    Hash,
    Path,
    TaggedHex,
)
from appliance.policy.schema.keys import KeySource
from appliance.policy.schema.kinds import Duration, Pick, SetOf, Size, Switch, Version, Whole
from appliance.policy.schema.versions import VERSIONS, Since, Until, Was

SNP_RULES, TDX_RULES, TPM_RULES = (f"attestation/{each}/judging/validate" for each in ("snp", "tdx", "tpm"))
PRODUCTS = ("milan", "genoa", "siena", "turin", "venice")  # AMD's product lines
ISSUED_AS: Mapping[str, str] = MappingProxyType({"siena": "genoa"})  # a line with the keys of another one
_FIRST_PRODUCTS = Was(1, SetOf(Pick(("milan", "genoa", "turin")), 1), (
    "The CPU generations that are accepted. Of Milan the root seed can be extracted by software (arXiv 2605.12990), so "
    "that anyone can sign reports of any security version."))
_FIRST_SMT = "Accept hyper-threading on the host: a neighbour on the same core shares caches."
_FIRST = names_in(1)  # schema 1 keeps its platforms
_FORMER = None if _FIRST == NAMES else Was(1, SetOf(Pick(_FIRST), 1))


class Appliance(Block):
    """The name of this deployment, and the version of the policy language that it is written in."""

    name: Annotated[str, NAME] = Field(
        enforced_by="signed/tenants", description="The deployment's name: in evidence, logs and reports.")
    schema_version: Annotated[int, Version(VERSIONS)] = Field(
        alias="schema", enforced_by="policy/digest", description="The version of the policy language. It fixes the "
        "fields and their defaults, so that a newer appliance computes the same digest for an old file.")


class MinTcb(Block):
    """The lowest security version of each SEV-SNP component that evidence may show."""

    bootloader: Annotated[int, Whole(0, 255)] = Field(
        default=0, enforced_by=SNP_RULES, description="Security version of the boot loader.")
    tee: Annotated[int, Whole(0, 255)] = Field(
        default=0, enforced_by=SNP_RULES, description="Security version of the PSP's system.")
    snp: Annotated[int, Whole(0, 255)] = Field(
        default=0, enforced_by=SNP_RULES, description="Security version of the SNP firmware.")
    microcode: Annotated[int, Whole(0, 255)] = Field(
        default=0, enforced_by=SNP_RULES, description="Patch level of the CPU's microcode.")
    fmc: Annotated[int, Whole(0, 255)] = Field(
        default=0, enforced_by=SNP_RULES, description="Security version of the FMC (Turin and later; "
        "0 elsewhere).")


class LineTcb(MinTcb):
    """The lowest security versions that evidence of one product line may show, and the mitigations
    that it must show. Lines count for themselves: what is old for one is unknown to another. The
    label is the product line. Siena's models have Genoa's keys: their own block counts for them,
    or Genoa's where they have none."""

    ENFORCED_BY: ClassVar[Enforcers] = SNP_RULES
    LABEL: ClassVar[str | None] = "product"

    product: Annotated[str, Pick(PRODUCTS)] = Field(description="The product line.")
    launch_mitigations: Annotated[str | None, MITIGATIONS] = Field(
        default=None, description="The bits that LAUNCH_MIT_VECTOR must have, among others: what was mended "
        "when the guest was launched. AMD's bulletins say what a bit means, line by line. A report below version 5 "
        "cannot show it and fails. Absent: none.")
    current_mitigations: Annotated[str | None, MITIGATIONS] = Field(
        default=None, description="The bits that CURRENT_MIT_VECTOR must have, among others: what is mended now. A "
        "host may mend while guests run, so that this one shows more than the other. A report below version 5 "
        "cannot show it and fails. Absent: none.")


def _one_floor_for_all(others: Mapping[str, Any]) -> tuple[LineTcb, ...]:
    """The floors of schema 1, which has one for all product lines that are accepted."""
    floor = dict(others["min_tcb"])
    if not any(floor.values()):
        return ()
    return tuple(LineTcb.model_construct(product=product, **floor) for product in others["products"])


class SevSnp(Block):
    """The requirements of an AMD SEV-SNP report beyond the common ones."""

    ENFORCED_BY: ClassVar[Enforcers] = SNP_RULES

    products: Annotated[tuple[str, ...], SetOf(Pick(PRODUCTS), 1)] = Field(
        was=_FIRST_PRODUCTS, default=("genoa", "turin"),
        description="The CPU generations that are accepted. `genoa` takes every CPU with Genoa's keys; `siena` only "
        "those whose CPUID in the report is Siena's or Bergamo's, which are alike there. Of Venice no root is pinned "
        "yet, so that its reports are refused. Of Milan the root seed can be extracted by software (arXiv "
        "2605.12990), so that anyone can sign reports of any security version.")
    signing_keys: Annotated[tuple[str, ...], SetOf(Pick(("vcek", "vlek")), 1)] = Field(
        default=("vcek", "vlek"), description="`vcek` is the chip's own key, `vlek` one that AMD gives a cloud.")
    min_tcb: MinTcb = Field(
        until=Until(1, 'write a block for each product line: min_tcb "genoa" { ... }'), default_factory=MinTcb,
        description="The lowest security versions.")
    floors: tuple[LineTcb, ...] = Field(
        since=Since(2, derive=_one_floor_for_all), alias="min_tcb", default=(),
        description="The lowest security versions of a product line, and its mitigations.")
    min_report_version: Annotated[int, Whole(2, 255)] = Field(
        since=Since(2, 2), default=2, description="The lowest version of the report: 3 and later show the CPU, 5 "
        "shows mitigations.")
    committed_is_current: Annotated[bool, Switch()] = Field(
        since=Since(2, False), default=False, description="Require that the firmware which runs is committed: its TCB "
        "and version are the committed ones, so that the host cannot go back to an older one.")
    min_api: Annotated[str | None, API_VERSION] = Field(
        default=None, description="The lowest version of the SNP firmware's interface.")
    min_guest_svn: Annotated[int, Whole(0, 2**32 - 1)] = Field(
        default=0, description="The lowest security version of the guest, from its ID block; it tells "
        "something only with one of the two keys below.")
    single_socket: Annotated[bool, Switch()] = Field(
        default=False, description="Require that the guest may run on one socket only.")
    ciphertext_hiding: Annotated[bool, Switch()] = Field(
        default=False, description="Require that the host cannot read the guest's ciphertext from DRAM.")
    guest_ciphertext_hiding: Annotated[bool, Switch()] = Field(
        since=Since(2, False), default=False, description="Require that the guest policy demands ciphertext hiding "
        "(CIPHERTEXT_HIDING_DRAM). Firmware launches such a guest only where hiding is on. `ciphertext_hiding` asks "
        "whether it is on now, on this machine.")
    rapl_disabled: Annotated[bool, Switch()] = Field(
        default=False, description="Require that the power meter is off (it leaks what is computed).")
    guest_rapl_disabled: Annotated[bool, Switch()] = Field(
        since=Since(2, False), default=False, description="Require that the guest policy demands a power meter that "
        "is off (RAPL_DIS). Firmware launches such a guest only where it is off. `rapl_disabled` asks whether it is "
        "off now, on this machine.")
    page_swap_disabled: Annotated[bool, Switch()] = Field(
        since=Since(2, False), default=False, description="Require that the guest policy forbids the host to move and "
        "swap the guest's pages (PAGE_SWAP_DISABLE; against Heracles). Firmware knows it from interface 1.58 on.")
    aes256_xts: Annotated[bool, Switch()] = Field(
        default=False, description="Require 256-bit memory encryption.")
    alias_check: Annotated[bool, Switch()] = Field(
        since=Since(2, False), default=False,
        description="Require that the firmware has found no aliased memory since the last reset "
        "(ALIAS_CHECK_COMPLETE; against BadRAM).")
    tsme: Annotated[bool, Switch()] = Field(
        since=Since(2, False), default=False, description="Require transparent encryption of all memory (TSME_EN).")
    ecc: Annotated[bool, Switch()] = Field(
        since=Since(2, False), default=False, description="Require memory with error correction (ECC_EN).")
    iommu_write_safe: Annotated[bool, Switch()] = Field(
        since=Since(2, False), default=False, description="Require IOMMU_WRITE_SAFE, which Turin's firmware reports.")
    tio: Annotated[bool | None, Switch()] = Field(
        since=Since(2), default=None, description="Whether the machine must have trusted devices enabled (SEV-TIO, by "
        "TIO_EN): `true` demands it, `false` refuses it. A report below version 5 cannot show it and fails. Absent: "
        "either.")
    max_revocation_age_ms: Annotated[int | None, Duration("1h", "400d")] = Field(
        since=Since(2), alias="max_revocation_age", default=None,
        description="How old AMD's revocation list may be, besides being in "
        "force; AMD's lists have lived for 47 days to a year. Absent: a list that is in force will do.")
    cxl: Annotated[bool, Switch()] = Field(default=False, description="Accept that CXL devices hold guest memory.")
    csp_ids: Annotated[tuple[str, ...], SetOf(CSP_ID)] = Field(
        since=Since(2, ()), default=(), description="The clouds that are accepted, by the CSP_ID in a VLEK's "
        "certificate. A VCEK names no cloud, so that it cannot show one and fails. Empty: any cloud, and any VCEK.")
    id_key_sha384: Annotated[str | None, Hash(384)] = Field(
        default=None, description="Digest of the key that signed the guest's ID block.")
    author_key_sha384: Annotated[str | None, Hash(384)] = Field(
        default=None, description="Digest of the key that signed the ID key.")


class Tdx(Block):
    """The requirements of an Intel TDX quote beyond the common ones."""

    ENFORCED_BY: ClassVar[Enforcers] = TDX_RULES

    tcb_status: Annotated[tuple[str, ...], SetOf(Pick((
        "UpToDate", "SWHardeningNeeded", "ConfigurationNeeded", "ConfigurationAndSWHardeningNeeded", "OutOfDate",
        "OutOfDateConfigurationNeeded")), 1)] = Field(
        default=("UpToDate",), description="The verdicts on the platform's TCB that are accepted. `Revoked` never is.")
    accepted_advisories: Annotated[tuple[str, ...], SetOf(ADVISORY)] = Field(
        default=(), description="Advisories that are known to leave the platform as it is, and are accepted.")
    min_evaluation_number: Annotated[int, Whole(0, 2**31)] = Field(
        default=0, description="The lowest TCB evaluation data number: an older judgement is refused.")
    tcb_grace_ms: Annotated[int | None, Duration("1h", "400d")] = Field(
        since=Since(2), alias="tcb_grace", default=None,
        description="How long after the `tcbDate` of its level an `OutOfDate` "
        "platform, TDX module or QE is still accepted, with the advisories that are open since then. "
        "`OutOfDateConfigurationNeeded` counts as `ConfigurationNeeded` meanwhile. Absent: no such time.")
    mr_seam: Annotated[tuple[str, ...], SetOf(Hash(384))] = Field(
        since=Since(2, ()), default=(),
        description="The TDX modules that are accepted, by MRSEAM. Empty: each production module of "
        "Intel's.")
    min_tee_tcb_svn: Annotated[str | None, TEE_TCB_SVN] = Field(
        since=Since(2), default=None,
        description="The lowest TEE_TCB_SVN, component by component, at the TD's launch and now.")
    xfam: Annotated[str | None, XFAM] = Field(
        since=Since(2), default=None,
        description="The extended CPU features that a TD may have: any other bit in its XFAM is "
        "refused. Absent: any.")
    service_tds: Annotated[tuple[str, ...], SetOf(Hash(384))] = Field(
        since=Since(2, ()), default=(),
        description="The service TDs that a TD may be bound to, by MRSERVICETD. Empty: none, so that a TD "
        "which is bound to one is refused.")


class TpmRegisters(Block):
    """The requirements of a TPM quote. A vTPM that the host runs belongs to the operator: such
    evidence never gives the verdict "verified", unless its key is bound in an SEV-SNP or TDX
    report."""

    ENFORCED_BY: ClassVar[Enforcers] = TPM_RULES

    pcrs: Annotated[tuple[int, ...], SetOf(Whole(0, 23), 1, 24)] = Field(
        default=(0, 2, 3, 4, 5, 6, 7, 9, 11, 12, 13), description="The PCRs that a quote must cover.")


class Azure(Block):
    """Microsoft's paravisors that are trusted below a guest on Azure. The hardware's report there
    is of a paravisor, which holds the TPM that measures the guest. With `platforms = ["tpm"]` and
    this block, the report of a named one gives "verified, Microsoft's paravisor trusted"."""

    ENFORCED_BY: ClassVar[Enforcers] = "attestation/paravisor/judge"

    paravisor_measurements: Annotated[tuple[str, ...], SetOf(Hash(384), 1)] = Field(
        description="The launch digests (SEV-SNP) and MRTDs (TDX) of paravisors that are trusted.")
    id_key_sha384: Annotated[str | None, Hash(384)] = Field(
        default=None, description="Digest of Microsoft's key that signed the ID block of the paravisor, demanded "
        "beside the measurement: the key also signs other guests. Of SEV-SNP only, so that a TD cannot show it and "
        "fails. Absent: not compared.")
    source: Annotated[str, FreeText(1, 200)] = Field(
        description="Where these values come from, for whoever reads a verdict: an address, or the machine on which "
        "they were recorded and when.")


class Gce(Block):
    """Google's endorsement of the firmware, which evidence must then have. A row of the
    measurements shows it, as `appliance image predict --gce-endorsement` writes it."""

    ENFORCED_BY: ClassVar[Enforcers] = "attestation/google/rule"

    min_svn: Annotated[int, Whole(0, 2**32 - 1)] = Field(
        default=0, description="The lowest security version that Google gives the firmware in its endorsement.")


class Machines(Block):
    """The machines of which evidence is accepted: a signed, versioned list of their names, whose
    authority is pinned here. Evidence of any other chip is refused, also by a genuine key that was
    taken out of it. Verifiers and key brokers hold the list."""

    ENFORCED_BY: ClassVar[Enforcers] = "signed/machines"

    authority: Annotated[str, TaggedHex("ed25519", 32)] = Field(
        description="The public key that signs the machine list.")
    list_file: Annotated[str, Path()] = Field(
        alias="list", description="The file of the signed list, which a verifier looks for beside the policy.")
    min_version: Annotated[int, Whole(0, 2**53 - 1)] = Field(
        default=0, description="The lowest version of the list that is accepted, against rollback.")


class Requirements(Block):
    """The requirements of hardware evidence before a key is released and before a client trusts the
    answer."""

    debug: Annotated[bool, Switch()] = Field(
        default=False, enforced_by=(SNP_RULES, TDX_RULES),
        description="Accept a guest that the host may debug, that is, read. Never in production.")
    migration: Annotated[bool, Switch()] = Field(
        default=False, enforced_by=(SNP_RULES, TDX_RULES),
        description="Accept a guest that a migration agent may move.")
    smt_of_either: Annotated[bool, Switch()] = Field(
        until=Until(1, "it is written alike", reads=True), alias="smt", default=True,
        enforced_by=(SNP_RULES, TDX_RULES), description=_FIRST_SMT)
    smt: Annotated[bool, Switch()] = Field(
        since=Since(2, derive=lambda others: others["smt_of_either"]), was=Was(1, description=_FIRST_SMT),
        default=False, enforced_by=(SNP_RULES, TDX_RULES),
        description="Accept hyper-threading: a neighbour on the same core shares caches. On SEV-SNP, `false` is met by "
        "a guest policy that forbids it, since firmware launches no such guest where it is on, or by a host where it "
        "is off now.")
    vmpl: Annotated[int, Whole(0, 3)] = Field(
        default=0, enforced_by=SNP_RULES, description="The highest VM privilege level number (least "
        "privilege) that may ask for a report.")
    max_collateral_age_ms: Annotated[int, Duration("1h", "365d")] = Field(
        alias="max_collateral_age", default=30 * 86_400_000,
        was=Was(1, description="How old revocation lists and TCB information may be."),
        enforced_by=TDX_RULES, description="How old Intel's TCB information, QE identity and list of "
        "revoked PCKs may be. AMD's lists have `sev_snp.max_revocation_age`.")
    sev_snp: SevSnp = Field(default_factory=SevSnp, description="Requirements on AMD SEV-SNP reports.")
    tdx: Tdx = Field(default_factory=Tdx, description="Requirements on Intel TDX quotes.")
    tpm: TpmRegisters = Field(default_factory=TpmRegisters, description="Requirements on TPM quotes.")
    azure: Azure | None = Field(since=Since(2), default=None, description="Microsoft's paravisors that are trusted; "
                                "absent: none, so that a guest on Azure is as any with a TPM of its host's.")
    gce: Gce | None = Field(since=Since(2), default=None, description="Google's endorsement of the firmware; absent: "
                            "none is demanded.")
    machines: Machines | None = Field(since=Since(2), default=None, description="The machines that are accepted; "
                                      "absent: any.")


class Tee(Block):
    """Where the appliance may run, how much memory it may use, and what evidence must show."""

    platforms: Annotated[tuple[str, ...], SetOf(Pick(NAMES), 1)] = Field(
        was=_FORMER, enforced_by=("boot/stages", "attestation/judge"),
        description="The platforms that are accepted. `simulated` protects nothing, is for development, "
        "and cannot stand beside another.")
    memory_budget_bytes: Annotated[int | None, Size("64MiB", "64TiB")] = Field(
        alias="memory_budget", default=None, enforced_by="boot/planning/budget", description="The memory that the "
        "whole process may use; absent: what the machine or its cgroup has.")
    plaintext_budget_bytes: Annotated[int, Size("1MiB", "64TiB")] = Field(
        alias="plaintext_budget", default=8 * 2**20, enforced_by="boot/running/load", description="With "
        "`streaming_decrypt = true`, the most plaintext weights that exist at any moment.")
    evidence: Requirements = Field(default_factory=Requirements, description="What evidence must show.")


class Successor(Block):
    """The authority that names the image which follows this one. A state key in a TPM is sealed for
    that image as well, so that the disk goes on."""

    ENFORCED_BY: ClassVar[Enforcers] = "signed/successor"

    authority: Annotated[str, TaggedHex("ed25519", 32)] = Field(
        description="The public key that signs the document of a successor.")
    document: Annotated[str, Path()] = Field(
        default="successor.json", description="The file of that document, which is looked for beside the policy and "
        "in the folders with models. Absent: there is no successor yet.")


class State(Block):
    """The writable disk, sealed by the appliance: audit log, quota counters, session caches.
    Without this block nothing is written anywhere."""

    device: Annotated[str, DEVICE] = Field(
        enforced_by="state/audit_sink", description="The block device of the state disk.")
    key: KeySource = Field(description="Where the disk's key comes from.")
    successor: Successor | None = Field(
        since=Since(2), default=None, description='The image that follows; with `provider = "tpm"` only.')


class Approver(Block):
    """A person whose detached signature over the policy digest counts as an approval."""

    LABEL: ClassVar[str | None] = "name"

    name: Annotated[str, NAME] = Field(description="Who approves.")
    public_key: Annotated[str, TaggedHex("ed25519", 32)] = Field(
        enforced_by="signed/approvals", description="The approver's Ed25519 public key.")


class Quorum(Block):
    """How many of the named approvers must have signed the policy digest before the appliance
    boots."""

    required: Annotated[int, Whole(1, 64)] = Field(
        enforced_by="signed/approvals", description="How many distinct approvers must have signed.")
    approvers: tuple[Approver, ...] = Field(
        alias="approver", default=(), description="Those who may approve; at least as many as are required.")
