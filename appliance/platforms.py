"""The platforms: one row each. Every list of platforms in this package is made from these rows.

The meaning of a platform's evidence is in `attestation/<platform>/`, and its row in
`attestation/judge/platforms.py`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Platform:
    """A platform by its name in policies and evidence."""

    name: str
    kbs: str  # its name in the protocol of Trustee's key broker
    tsm: str | None = None  # the kernel's name of its provider in configfs-tsm
    notice: str = ""  # what its evidence says for people, where it proves less than a verdict "verified"

    @property
    def tee(self) -> bool:
        """Whether the host cannot read its memory."""
        return self.tsm is not None


SNP = Platform("sev-snp", kbs="snp", tsm="sev_guest")
TDX = Platform("tdx", kbs="tdx", tsm="tdx_guest")
TPM = Platform("tpm", kbs="tpm", notice="MEASURED BOOT, HOST TRUSTED. A virtual TPM is its host's, so this protects "
               "nothing from the host.")
SIMULATED = Platform("simulated", kbs="sample", notice="SIMULATED: PROVES NOTHING. Anyone can make this report; there "
                     "is no hardware behind it.")
PLATFORMS = (SNP, TDX, TPM, SIMULATED)
NAMES = tuple(each.name for each in PLATFORMS)
TEES = tuple(each.name for each in PLATFORMS if each.tee)
