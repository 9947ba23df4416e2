"""AMD's product lines: what is known of their firmware, and of which the root seed is out.

Sources of the security versions: genuine reports and certificates that public projects carry
(microsoft/TEE-Attestation-Verification, confidential-containers/trustee,
confidential-dot-ai/attestation-rs), the minimum versions in microsoft/CCF (issue 6812, pull request
6837) and AMD's bulletin AMD-SB-3019, up to November 2026.
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
    """The highest security version of each component that a published report of a product line
    shows. A line without published reports is not here."""

    bootloader: int
    tee: int
    snp: int
    microcode: int
    fmc: int


HIGHEST: Mapping[str, Highest] = MappingProxyType({
    "milan": Highest(bootloader=4, tee=0, snp=24, microcode=220, fmc=0),
    "genoa": Highest(bootloader=10, tee=0, snp=27, microcode=84, fmc=0),
    "siena": Highest(bootloader=10, tee=0, snp=27, microcode=27, fmc=0),
    "turin": Highest(bootloader=1, tee=1, snp=4, microcode=81, fmc=1),
})


def accepted_without_root(policy: Policy) -> tuple[str, ...]:
    """Return the product lines that a policy accepts although their root seed is out."""
    if SNP.name not in policy.tee.platforms:
        return ()
    return tuple(product for product in policy.tee.evidence.sev_snp.products if product in ROOT_SEED_OUT)


def beyond(product: str, floor: Mapping[str, int]) -> Iterator[tuple[str, int, int]]:
    """Yield each component of `floor` that is above all that is known of a line: name, floor,
    highest."""
    known = HIGHEST.get(product)
    for component, version in floor.items() if known else ():
        highest = getattr(known, component)
        if version > highest:
            yield component, version, highest
