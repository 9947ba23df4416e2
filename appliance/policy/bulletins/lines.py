"""AMD's product lines: the highest firmware that is known of them, and whose root seed is out.

Genuine reports and certificates that public projects carry show the security versions:
microsoft/TEE-Attestation-Verification, confidential-containers/trustee and
confidential-dot-ai/attestation-rs. Others describe reports of live machines: ariofrio/pi-tee,
BitcoinPIR and atakit. Bulletins ask for the rest, up to November 2026.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from appliance.platforms import SNP
from appliance.policy.schema import Policy

KNOWN_UNTIL = "November 2026"
MILAN_ROOT_SEED = ("the root seed of EPYC Milan can be extracted by software alone (arXiv 2605.12990, May 2026): "
                   "whoever has a chip's seed signs reports of any firmware for it, so no TCB floor helps")
NO_ROOT = frozenset({"venice"})  # product lines whose root is not pinned: see attestation/trust/amd
ROOT_SEED_OUT: Mapping[str, str] = MappingProxyType({"milan": MILAN_ROOT_SEED})  # product line: what is known


@dataclass(frozen=True)
class Highest:
    """The highest security version of each component of a product line that a published report
    shows or a bulletin asks for; `mitigations`: the bits that reports of patched machines show."""

    bootloader: int
    tee: int
    snp: int
    microcode: int
    fmc: int
    mitigations: int


HIGHEST: Mapping[str, Highest] = MappingProxyType({
    "milan": Highest(bootloader=4, tee=0, snp=29, microcode=222, fmc=0, mitigations=0xF),
    "genoa": Highest(bootloader=10, tee=0, snp=28, microcode=86, fmc=0, mitigations=0xB),
    "siena": Highest(bootloader=10, tee=0, snp=28, microcode=28, fmc=0, mitigations=0xB),
    "turin": Highest(bootloader=3, tee=2, snp=5, microcode=97, fmc=1, mitigations=0x3F),
})


def accepted_without_root(policy: Policy) -> tuple[str, ...]:
    """Return the product lines that a policy accepts although their root seed is out."""
    if SNP.name not in policy.tee.platforms:
        return ()
    return tuple(product for product in policy.tee.evidence.sev_snp.products if product in ROOT_SEED_OUT)


def beyond(line: str, floor: Mapping[str, int]) -> Iterator[tuple[str, int, int]]:
    """Yield each component of `floor` that is above all that is known of a line: name, floor,
    highest."""
    known = HIGHEST.get(line)
    for component, version in floor.items() if known else ():
        highest = getattr(known, component)
        if version > highest:
            yield component, version, highest
