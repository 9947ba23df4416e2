"""AMD's root keys (ARK), one for each product line, pinned by the SHA-256 of the whole DER certificate.

AMD serves them at https://kdsintf.amd.com/vcek/v1/{Milan,Genoa,Turin}/cert_chain (and the same roots under /vlek/).
Each value below was compared with the copies that three independent public projects ship (google/go-sev-guest,
virtee/sev, microsoft/TEE-Attestation-Verification); they agree. A product line that is not here is named and
refused, never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# product line -> SHA-256 of the DER certificate of ARK-<product line>
ROOTS: Mapping[str, str] = MappingProxyType({
    "Milan": "69d063b45344d26a2e94e1f4210de49ef555308287d4c174445c95639a540bcd",
    "Genoa": "4c6598d19c18719c5dfd4a7d335f674e5bfe1d8f800cea2cf270c10d103db2f1",
    "Turin": "1f084161a44bb6d93778a904877d4819cafa5d05ef4193b2ded9dd9c73dd3f6a",
})

# Zen 3 and 4 are family 0x19, Zen 5 is 0x1A: (family, first model, last model) -> the product line whose keys
# AMD issues for it (57230, VCEK and KDS interface). Bergamo and Siena (0xA0..0xAF) have Genoa's.
_MODELS = (
    (0x19, 0x00, 0x0F, "Milan"),
    (0x19, 0x10, 0x1F, "Genoa"),
    (0x19, 0xA0, 0xAF, "Genoa"),
    (0x1A, 0x00, 0x11, "Turin"),
)


def product_of(family: int, model: int) -> str | None:
    """The product line of a combined CPUID family and model; None if it is not known here."""
    for known_family, first, last, product in _MODELS:
        if family == known_family and first <= model <= last:
            return product
    return None
