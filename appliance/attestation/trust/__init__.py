"""Roots of trust, pinned by fingerprint: the only keys that are believed without a signature over
them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from appliance.attestation.trust import amd, intel, tpm


@dataclass(frozen=True)
class Roots:
    """Whom to believe: the vendors, unless a test names a hierarchy of its own.

    `amd`: product line to SHA-256 of its ARK. `intel`: SHA-256 of the root, and `intel_der` the
    certificate itself where it is not Intel's. `tpm`: SHA-256 of a root above attestation keys to
    its name. `others`: SHA-256 of the root of another platform, by its name, in place of the one
    that the platform's folder pins.
    """

    amd: Mapping[str, str] = field(default_factory=lambda: amd.ROOTS)
    intel: str = intel.ROOT
    intel_der: bytes | None = None
    tpm: Mapping[str, str] = field(default_factory=lambda: tpm.ROOTS)
    others: Mapping[str, str] = field(default_factory=dict)


VENDORS = Roots()

__all__ = ["amd", "intel", "tpm", "unsafe"]
