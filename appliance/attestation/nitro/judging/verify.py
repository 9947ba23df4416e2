"""The signature of a NitroTPM's document and its chain, up to AWS's root, which is pinned here.

The chain is short-lived: the certificate that signs lives for about three hours. A document that is
judged later needs its own time. Each check that depends on the time takes `at`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from appliance.attestation.nitro.judging import abi
from appliance.attestation.nitro.judging.abi import NitroDocument
from appliance.attestation.x509 import walks
from appliance.codec import cbor
from appliance.errors import ForgedEvidenceError, MalformedEvidenceError, UnsupportedEvidenceError

ROOT_NAME = "aws.nitro-enclaves"
# AWS publishes this fingerprint beside AWS_NitroEnclaves_Root-G1.zip, and documents of NitroTPMs
# lead to it as those of enclaves do. It was compared with the certificate in lockboot/vaportpm.
ROOT = "641a0321a3e244efe456463195d606317ed7cdcc3c1756e09893f3c68f79bb5b"
_WHAT = "NitroTPM document"


@dataclass(frozen=True)
class NitroClaims:
    """Authentic claims: AWS's hypervisor signed the document. `root` names the root above it."""

    document: NitroDocument
    root: str

    @property
    def signed_at(self) -> datetime:
        """The time that the document states; the hypervisor's clock gave it."""
        return datetime.fromtimestamp(self.document.timestamp / 1000, UTC)


def verify(raw: bytes, *, at: datetime, root: str = ROOT) -> NitroClaims:
    """The claims of a document.

    Raises MalformedEvidenceError, UnsupportedEvidenceError; ForgedEvidenceError if a signature or
    the chain does not hold; UncheckedEvidenceError if a certificate is out of its time or the root
    is another.
    """
    document = abi.parse(raw)
    leaf = walks.load(document.certificate, _WHAT)[0]
    _check_signature(document, leaf)
    _check_leaf(leaf)
    others = [each for data in document.authorities for each in walks.load(data, _WHAT)]
    _check_time(document, leaf)
    return NitroClaims(document, walks.root_of(leaf, others, at=at, roots=_pinned(root)))


def _pinned(root: str) -> Mapping[str, str]:
    return {root: "AWS Nitro Enclaves Root-G1" if root == ROOT else f"{ROOT_NAME}, of a test"}


def _check_signature(document: NitroDocument, leaf: x509.Certificate) -> None:
    key = leaf.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise UnsupportedEvidenceError(f"{_WHAT}: its certificate's key is not ECDSA P-384", code="chain-algorithm")
    half = len(document.signature) // 2
    r, s = (int.from_bytes(part, "big") for part in (document.signature[:half], document.signature[half:]))
    signed = cbor.encode(["Signature1", abi.PROTECTED, b"", document.payload])  # RFC 9052, section 4.4
    try:
        key.verify(encode_dss_signature(r, s), signed, ec.ECDSA(hashes.SHA384()))
    except InvalidSignature:
        raise ForgedEvidenceError(f"{_WHAT}: the signature is not by the certificate in it",
                                  code="report-signature") from None


def _check_leaf(leaf: x509.Certificate) -> None:
    """The certificate is of no authority, and is for signatures."""
    found = {each.oid: each.value for each in leaf.extensions}
    usage, constraints = found.get(x509.KeyUsage.oid), found.get(x509.BasicConstraints.oid)
    if (isinstance(constraints, x509.BasicConstraints) and constraints.ca) or not (
            isinstance(usage, x509.KeyUsage) and usage.digital_signature):
        raise ForgedEvidenceError(f"{_WHAT}: its certificate is not for signatures", code="chain-authority")
    walks.check_critical(leaf, walks.READ)


def _check_time(document: NitroDocument, leaf: x509.Certificate) -> None:
    """The document was made while its certificate was in force."""
    try:
        made = datetime.fromtimestamp(document.timestamp / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        raise MalformedEvidenceError(f"{_WHAT}: its time is not one") from None
    if not walks.in_time(leaf, made):
        raise ForgedEvidenceError(f"{_WHAT}: made at {made:%Y-%m-%dT%H:%M:%SZ}, when its certificate was not in force",
                                  code="chain-authority")
