"""The platforms: one row each. Every list of platforms in this package is made from these rows.

A row names the folder of its platform in `attestation/`. In it, `collecting/` asks the machine's
hardware and ships in the image; `judging/` is the verifier's and does not ship.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """A platform by its name in policies and evidence. Stronger platforms have their rows first."""

    name: str
    folder: str  # in `attestation`: `collecting/collector` has a COLLECTOR, `judging/judge` a JUDGE
    tee: bool  # whether the host cannot read its memory
    kbs: str  # its name in the protocol of Trustee's key broker
    schema: int = 2  # the first version of the policy language that has it
    tsm: str | None = None  # the kernel's name of its provider in configfs-tsm
    device: str | None = None  # the kernel's device, where it has one
    kubevirt: str | None = None  # KubeVirt's name of its launch security
    verdict: str = "verified"  # the best one on its evidence
    gate: str = ""  # what an image's gate lets through for it: a table of `image/gate`
    console: str = ""  # the warning in the boot's report, in two columns
    notice: str = ""  # what its evidence says for people, where it proves less than a verdict "verified"


SNP = Platform(name="sev-snp", folder="snp", tee=True, kbs="snp", schema=1,
               tsm="sev_guest", kubevirt="snp")
TDX = Platform(name="tdx", folder="tdx", tee=True, kbs="tdx", schema=1, gate="td",
               tsm="tdx_guest", kubevirt="tdx")
TPM = Platform(name="tpm", folder="tpm", tee=False, kbs="tpm", schema=1, gate="tpm",
               device="/dev/tpmrm0", verdict="measured boot, host trusted",
               console="HOST TRUSTED a TPM measures the boot, and protects nothing from whoever runs this machine",
               notice="MEASURED BOOT, HOST TRUSTED. A virtual TPM is its host's, so this protects nothing from the "
               "host.")
NITRO = Platform(name="aws-nitrotpm", folder="nitro", tee=False, kbs="aws-nitrotpm", gate="tpm",
                 device="/dev/tpm0", verdict="measured boot, AWS trusted",
                 console="AWS TRUSTED  AWS's hypervisor signs what booted, and can read this machine",
                 notice="MEASURED BOOT, AWS TRUSTED. AWS's hypervisor signed this, and can read the guest.")
IMAGE_PCRS = frozenset({4, 9, 11})  # of a TPM: boot loader and kernel image; what the boot stub loaded
SIMULATED = Platform(name="simulated", folder="simulated", tee=False, kbs="sample",
                     schema=1, verdict="simulated",
                     console="SIMULATED    this platform protects nothing and proves nothing; it is for development",
                     notice="SIMULATED: PROVES NOTHING. Anyone can make this report; there is no hardware behind it.")
PLATFORMS = (SNP, TDX, NITRO, TPM, SIMULATED)
BY_NAME = {each.name: each for each in PLATFORMS}
NAMES = tuple(BY_NAME)
TEES = tuple(each.name for each in PLATFORMS if each.tee)


def names_in(schema: int) -> tuple[str, ...]:
    """The platforms that a version of the policy language has."""
    return tuple(each.name for each in PLATFORMS if each.schema <= schema)
