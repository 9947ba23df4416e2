"""The vendors' roots as one value, and what stands in their place in a test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from appliance.attestation.tdx import signatures
from appliance.attestation.trust import amd, tpm


@dataclass(frozen=True)
class Roots:
    """Whom to believe: the vendors, unless a test names a hierarchy of its own.

    `amd`: product line to SHA-256 of its ARK. `intel`: SHA-256 of the root, and `intel_der` the
    certificate itself where it is not Intel's. `tpm`: SHA-256 of a root above attestation keys to
    its name. `others`: SHA-256 of the root of another platform, by its name, in place of the one
    that the platform's folder pins.
    """

    amd: Mapping[str, str] = field(default_factory=lambda: amd.ROOTS)
    intel: str = signatures.ROOT
    intel_der: bytes | None = None
    tpm: Mapping[str, str] = field(default_factory=lambda: tpm.ROOTS)
    others: Mapping[str, str] = field(default_factory=dict)


VENDORS = Roots()
