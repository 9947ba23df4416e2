"""AMD's root keys (ARK), one for each product line, pinned by the SHA-256 of the whole DER
certificate.

AMD serves them at https://kdsintf.amd.com/vcek/v1/{Milan,Genoa,Turin}/cert_chain (and the same
roots under /vlek/). Each value below was compared with the copies that three independent public
projects ship (google/go-sev-guest, virtee/sev, microsoft/TEE-Attestation-Verification); they agree.
A product line that is not here is named and refused, never guessed.

The authorities below them (ASK above VCEKs, ASVK above VLEKs) are shipped beside this file, as
`amd_<line>.pem`, so that a report with its leaf alone can be verified. Nothing is trusted for being
shipped: a chain has to reach its ARK.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType

from cryptography import x509

from appliance import packaged
from appliance.attestation.x509 import walks
from appliance.errors import MalformedEvidenceError

# product line -> SHA-256 of the DER certificate of ARK-<product line>
ROOTS: Mapping[str, str] = MappingProxyType({
    "Milan": "69d063b45344d26a2e94e1f4210de49ef555308287d4c174445c95639a540bcd",
    "Genoa": "4c6598d19c18719c5dfd4a7d335f674e5bfe1d8f800cea2cf270c10d103db2f1",
    "Turin": "1f084161a44bb6d93778a904877d4819cafa5d05ef4193b2ded9dd9c73dd3f6a",
})

# Common name -> SHA-256 of the DER certificate. The six were compared in google/go-sev-guest,
# confidential-containers/ trustee and confidential-dot-ai/attestation-rs, which agree.
AUTHORITIES: Mapping[str, str] = MappingProxyType({
    "SEV-Milan": "67d303bd3905fd38db8b20e0793699870e7fa612eaad5dec358293fd8c0bac1b",
    "SEV-VLEK-Milan": "c5e081f59b7efab1fe2f8b505e159704e72f29cab7ef7cf628a05a42439082f5",
    "SEV-Genoa": "5464738c1546aed5f2cecf1dc98c5c960a92e8913238a61711bc90ec6e828521",
    "SEV-VLEK-Genoa": "197e610743a917d6b9bb982a5a9226ccc0a15b611be0619e626aca9151457372",
    "SEV-Turin": "5b77ef5fe7a7a004fd9032668fba9d0fda22f88c4442069a479636a6ae3b3185",
    "SEV-VLEK-Turin": "104e10a8bd060a3c20a434261a57d0588fd65a88915b4f65b08bdecaf8df1a3c",
})

# (family, first model, last model) -> the product line, by 57230, VCEK and KDS interface, table 4.
# Bergamo has the models of Siena. Those of Venice are from virtee/sev, pull request 371, which an
# engineer of AMD wrote. ARK-Venice was found in one public project, which is too few to pin it.
_MODELS = (
    (0x19, 0x00, 0x0F, "Milan"),
    (0x19, 0x10, 0x1F, "Genoa"),
    (0x19, 0xA0, 0xAF, "Siena"),
    (0x1A, 0x00, 0x11, "Turin"),
    (0x1A, 0x50, 0x5F, "Venice"),
    (0x1A, 0x90, 0xAF, "Venice"),
    (0x1A, 0xC0, 0xCF, "Venice"),
)
_ISSUED_AS = {"Siena": "Genoa"}  # whose keys a line has that has none of its own (57230)


def line_of(family: int, model: int) -> str | None:
    """The product line of a combined CPUID family and model; None if it is not known here."""
    for known_family, first, last, line in _MODELS:
        if family == known_family and first <= model <= last:
            return line
    return None


def issued_as(line: str) -> str:
    """The product line whose keys AMD issues for a line: the same, but for Siena."""
    return _ISSUED_AS.get(line, line)


def product_of(family: int, model: int) -> str | None:
    """The product line whose keys a CPU has, by its combined CPUID family and model; None if it is
    not known here."""
    line = line_of(family, model)
    return None if line is None else issued_as(line)


@functools.cache
def shipped() -> tuple[x509.Certificate, ...]:
    """The ASK, ASVK and ARK of each product line. Raises DamagedError where a file is not what was
    pinned."""
    return tuple(each for product in ROOTS for each in _line(product))


def _line(product: str) -> list[x509.Certificate]:
    place = f"attestation/trust/amd_{product.lower()}.pem"
    wanted = [AUTHORITIES[f"SEV-{product}"], AUTHORITIES[f"SEV-VLEK-{product}"], ROOTS[product]]
    expected = f"AMD's ASK, ASVK and ARK of {product} in PEM"
    data = packaged.content(place, expected)
    try:
        found = walks.load(data, place)
    except MalformedEvidenceError as error:
        raise packaged.damaged(packaged.ROOT / place, expected, error.summary) from None
    if [walks.fingerprint(each) for each in found] != wanted:
        raise packaged.damaged(packaged.ROOT / place, expected, "other certificates")
    return found
