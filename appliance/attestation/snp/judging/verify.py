"""From a raw SEV-SNP report to authentic claims: signature, certificate chain, pinned root. No
policy is known here.

The chain is ARK -> ASK -> VCEK (a chip's own key) or ARK -> ASVK -> VLEK (a key that AMD loads for
a cloud). The certificates come from untrusted collateral; ASK and ASVK are shipped as well. Only
the ARK's fingerprint is trusted (trust/amd.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from appliance.attestation.snp.judging import abi, kds
from appliance.attestation.snp.judging import certificate as snp_certificate
from appliance.attestation.snp.judging.abi import SnpReport, SnpTcb
from appliance.attestation.snp.judging.certificate import Endorsement
from appliance.attestation.snp.judging.pss import is_p384, signed_with_pss_sha384
from appliance.attestation.trust import amd
from appliance.attestation.x509 import walks
from appliance.attestation.x509.judging import revocation
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.attestation.x509.judging.revocation import Revocation
from appliance.errors import (
    AttestationError,
    ForgedEvidenceError,
    MalformedEvidenceError,
    UncheckedEvidenceError,
    UnsupportedEvidenceError,
)

_P384_ORDER = int("ffffffffffffffffffffffffffffffffffffffffffffffff"
                  "c7634d81f4372ddf581a0db248b0a77aecec196accc52973", 16)
MAX_TRIED = 8  # leaves, and chains above each
_LEAVES = {abi.VCEK: "SEV-VCEK", abi.VLEK: "SEV-VLEK"}  # common name of the leaf certificate
_AUTHORITIES = {abi.VCEK: "SEV-", abi.VLEK: "SEV-VLEK-"}  # and of its issuer, before the product line


@dataclass(frozen=True)
class SnpClaims:
    """The claims of an authentic report and its chain, judged `at` a time. `revocation` is None if
    no list was at hand."""

    report: SnpReport
    product: str              # "Milan", "Genoa", "Turin"
    signing_key: str          # "vcek" or "vlek"
    csp_id: str | None        # the cloud that a VLEK was issued to
    chip_id_masked: bool      # the host hides which chip it is
    reported_tcb: SnpTcb
    current_tcb: SnpTcb
    committed_tcb: SnpTcb
    launch_tcb: SnpTcb
    chain: tuple[str, ...]    # SHA-256 of leaf, intermediate, root
    not_after: datetime       # when the first certificate of the chain expires
    revocation: Revocation | None  # the newest list at hand; its time may have ended


@dataclass(frozen=True)
class _Leaf:
    certificate: x509.Certificate
    kind: int  # VCEK or VLEK
    endorsement: Endorsement


def _leaves(collateral: Collateral) -> tuple[list[_Leaf], list[tuple[x509.Certificate, MalformedEvidenceError]]]:
    """All VCEKs and VLEKs at hand, and those whose extensions cannot be read, with the reason."""
    found, unread = [], []
    for certificate in collateral.certificates:
        for kind, name in _LEAVES.items():
            if walks.common_name(certificate.subject) == name:
                try:
                    found.append(_Leaf(certificate, kind, snp_certificate.parse(certificate)))
                except MalformedEvidenceError as error:
                    unread.append((certificate, error))
    return found, unread


def signed_by(report: SnpReport, certificate: x509.Certificate, signed: bytes | None = None) -> bool:
    """Whether the certificate's key signed the report (or `signed` in its place): ECDSA P-384 with
    SHA-384."""
    key = certificate.public_key()
    r, s = report.signature
    if not (is_p384(key) and isinstance(key, ec.EllipticCurvePublicKey)
            and 0 < r < _P384_ORDER and 0 < s < _P384_ORDER):
        return False
    try:
        key.verify(encode_dss_signature(r, s), signed or report.signed, ec.ECDSA(hashes.SHA384()))
    except InvalidSignature:
        return False
    return True


def _altered(report: SnpReport, leaf: _Leaf) -> bool:
    """Whether the leaf's key signed this report before its chip id, TCB or key selector was
    altered."""
    selector = report.signed[abi.KEY_INFO_AT[0]] & ~0b11100 | leaf.kind << 2
    for (offset, size), value in (
            (abi.CHIP_ID_AT, leaf.endorsement.hardware_id),
            (abi.REPORTED_TCB_AT, leaf.endorsement.tcb.encode()),
            (abi.KEY_INFO_AT, bytes((selector, 0, 0, 0)))):
        if value is not None:
            signed = report.signed[:offset] + value + report.signed[offset + size:]
            if signed_by(report, leaf.certificate, signed):
                return True
    return False


def _endorses(leaf: _Leaf, report: SnpReport) -> bool:
    """Whether the leaf is the one that the report names: the same kind, chip and TCB.

    A VLEK names its cloud and no chip, and a host may mask the chip: then the leaf may be another
    key's.
    """
    return (leaf.kind == report.key_info.signing_key and leaf.endorsement.tcb.encode() == report.reported_tcb
            and any(report.chip_id) and leaf.endorsement.hardware_id == report.chip_id)


def _signers(report: SnpReport, collateral: Collateral, at: datetime) -> Iterator[_Leaf]:
    """The leaves whose key signed the report, the likely one first, and those in their time.

    Raises where there is none: Malformed if its extensions cannot be read, Forged if it is at hand
    and its key did not sign, else Unchecked.
    """
    signing_key, masked = report.key_info.signing_key, report.key_info.mask_chip_key
    if signing_key == abi.UNSIGNED or (masked and signing_key == abi.VCEK):
        raise ForgedEvidenceError("SEV-SNP report: it says of itself that no key signed it", code="report-unsigned")
    leaves, unread = _leaves(collateral)
    leaves.sort(key=lambda leaf: (not _endorses(leaf, report), not walks.in_time(leaf.certificate, at)))
    none = True
    for leaf in leaves:
        if leaf.kind == signing_key and signed_by(report, leaf.certificate):
            none = False
            yield leaf
    if none:
        raise _unsigned(report, collateral, leaves, unread)


def _unsigned(report: SnpReport, collateral: Collateral, leaves: list[_Leaf],
              unread: list[tuple[x509.Certificate, MalformedEvidenceError]]) -> AttestationError:
    """The error for a report that the key of no leaf signed; those that cannot be read are named.
    """
    for certificate, error in unread:
        if signed_by(report, certificate):
            return error
    collateral.problems += [error for _, error in unread]
    kind = _LEAVES[report.key_info.signing_key].removeprefix("SEV-")
    if any(_endorses(leaf, report) or _altered(report, leaf) for leaf in leaves):
        return ForgedEvidenceError(
            f"SEV-SNP report: the signature does not match the {kind} of its chip and TCB", code="report-signature")
    seen = f" (not among {len(leaves)} others{_clouds(leaves)})" if leaves else ""
    return collateral.unchecked(
        f"the {kind} certificate for chip {report.chip_id.hex()} and reported TCB "
        f"{report.reported_tcb.hex()}{seen} is absent", kds.leaf_hint(report))


def _clouds(leaves: list[_Leaf]) -> str:
    """Whose VLEKs are at hand, since a report does not say which cloud's signed it."""
    names = sorted({leaf.endorsement.csp_id for leaf in leaves if leaf.endorsement.csp_id})
    return f"; VLEKs at hand are of CSP_ID {', '.join(names)}" if names else ""


def _issuers(child: x509.Certificate, collateral: Collateral, at: datetime) -> list[x509.Certificate]:
    """The certificates that issued `child`, by name and by a signature with AMD's parameters: those
    at hand in their time, those that are shipped, then those out of their time."""
    at_hand = walks.named_issuers(child, collateral.certificates)
    named = [*at_hand, *walks.named_issuers(child, amd.shipped())]  # a stray file is never worse than none
    found = [each for each in dict.fromkeys(named) if signed_with_pss_sha384(child, each.public_key())]
    if not found:
        raise _misissued(child, [each for each in named if walks.fits(child, each)] or at_hand, collateral)
    return sorted(found, key=lambda each: not walks.in_time(each, at))


def _misissued(child: x509.Certificate, nearest: list[x509.Certificate], collateral: Collateral) -> AttestationError:
    """The error for a certificate that nobody at hand issued as AMD does; `nearest` have the
    issuer's name."""
    if not nearest:
        if any(signed_with_pss_sha384(child, each.public_key()) for each in collateral.certificates):
            return ForgedEvidenceError(
                f"certificate {walks.name_of(child)}: the issuer's key is at hand under another name",
                code="chain-name")
        return collateral.unchecked(
            f"the certificate of {walks.shown(child.issuer)}, who issued {walks.name_of(child)}, is absent",
            kds.chain_hint(walks.shown(child.issuer)))
    walks.check_issued(child, nearest[0])
    return ForgedEvidenceError(
        f"certificate {walks.name_of(child)}: not signed by RSASSA-PSS with SHA-384 and a salt of 48 bytes",
        code="chain-signature")


def _walk(leaf: x509.Certificate, collateral: Collateral, signing_key: int, roots: Mapping[str, str],
          at: datetime) -> tuple[str, list[x509.Certificate]]:
    """The chain from the leaf to its pinned root, and the product line that the root stands for.
    Raises the first way's error where none leads there."""
    first: AttestationError | None = None
    tried = 0
    for authority in _issuers(leaf, collateral, at):
        try:
            for root in _issuers(authority, collateral, at):
                if tried == MAX_TRIED:
                    break
                tried += 1
                try:
                    return _product([leaf, authority, root], signing_key, roots), [leaf, authority, root]
                except AttestationError as error:
                    first = first or error
        except AttestationError as error:
            first = first or error
    raise first or UncheckedEvidenceError(f"certificate {walks.name_of(leaf)}: no chain above it is at hand")


def _product(chain: list[x509.Certificate], signing_key: int, roots: Mapping[str, str]) -> str:
    """The product line of a chain: leaf, authority and root, each signed by the next."""
    _, authority, root = chain
    prefix, name = _AUTHORITIES[signing_key], walks.name_of(authority)
    product = name.removeprefix(prefix)
    if not name.startswith(prefix):
        raise ForgedEvidenceError(f"certificate {name}: expected {prefix}<product line>", code="chain-name")
    if walks.name_of(root) != f"ARK-{product}":
        raise ForgedEvidenceError(
            f"certificate {walks.name_of(root)}: expected ARK-{product} above {name}", code="chain-name")
    if product not in roots:
        raise UnsupportedEvidenceError(
            f"product line {product}: its root is not pinned, known: {', '.join(sorted(roots))}", code="snp-product")
    if walks.fingerprint(root) != roots[product]:
        raise ForgedEvidenceError(
            f"certificate ARK-{product}: not the pinned root of AMD ({walks.fingerprint(root)})",
            code="chain-root")
    walks.check_issued(root, root)
    walks.check_authority(root, below=1)
    walks.check_authority(authority, below=0)
    for certificate in chain:
        walks.check_critical(certificate)
    return product


def _endorsed(report: SnpReport, collateral: Collateral, roots: Mapping[str, str],
              at: datetime) -> tuple[_Leaf, str, list[x509.Certificate]]:
    """The leaf that signed and its chain. Raises the first leaf's error where no leaf has one."""
    first: AttestationError | None = None
    for leaf in islice(_signers(report, collateral, at), MAX_TRIED):
        try:
            product, chain = _walk(leaf.certificate, collateral, report.key_info.signing_key, roots, at)
            _check_endorsement(report, leaf.endorsement, product)
        except AttestationError as error:
            first = first or error
        else:
            return leaf, product, chain
    raise first or UncheckedEvidenceError("SEV-SNP report: no certificate of its key is at hand")


def _check_endorsement(report: SnpReport, endorsement: Endorsement, product: str) -> None:
    """The certificate was issued for this report's product line, chip and TCB."""
    if amd.issued_as(endorsement.product) != product:
        raise ForgedEvidenceError(
            f"certificate: issued for {endorsement.product} under the keys of {product}", code="snp-product-mismatch")
    if report.cpuid is not None:
        family, model, _ = report.cpuid
        if amd.product_of(family, model) not in (product, None):
            raise ForgedEvidenceError(
                f"SEV-SNP report: CPUID family {family:#x} model {model:#x} is not {product}, whose key signed it",
                code="snp-product-mismatch")
    masked = not any(report.chip_id)
    if endorsement.hardware_id is not None and not masked and endorsement.hardware_id != report.chip_id:
        raise ForgedEvidenceError(
            "SEV-SNP report: CHIP_ID is not the hardware id of the VCEK that signed it", code="snp-chip-id")
    found, wanted = endorsement.tcb, SnpTcb.decode(report.reported_tcb, product)
    if found != wanted:
        raise ForgedEvidenceError(
            f"SEV-SNP report: REPORTED_TCB is {wanted.components()}, the certificate is for {found.components()}",
            code="snp-tcb-mismatch")


def verify(report: bytes, collateral: Collateral, *, at: datetime,
           roots: Mapping[str, str] = amd.ROOTS) -> SnpClaims:
    """The claims of an authentic report.

    `report`: 1,184 bytes. `roots`: product line to SHA-256 of its ARK; others than AMD's are for
    tests only. Raises MalformedEvidenceError on bad bytes. Raises ForgedEvidenceError when the
    signature, the chain, the root or an extension does not hold, or a certificate is revoked.
    Raises UnsupportedEvidenceError naming a version or product line that is not known, and
    UncheckedEvidenceError when a certificate is absent, or not valid at `at`.
    """
    return authenticate(abi.parse(report), collateral, at=at, roots=roots)


def authenticate(parsed: SnpReport, collateral: Collateral, *, at: datetime,
                 roots: Mapping[str, str] = amd.ROOTS) -> SnpClaims:
    """The claims of a report that was read, if it is authentic. Raises as `verify` does, but for
    bad bytes."""
    signing_key = parsed.key_info.signing_key
    leaf, product, chain = _endorsed(parsed, collateral, roots, at)
    revoked = revocation.check(
        chain, collateral.crls, at=at,
        signed=lambda crl, authority: signed_with_pss_sha384(crl, authority.public_key()))
    for certificate in chain:  # last: what is forged is told before what is out of its time
        walks.check_valid(certificate, at)
    return SnpClaims(
        report=parsed, product=product, signing_key="vlek" if signing_key == abi.VLEK else "vcek",
        csp_id=leaf.endorsement.csp_id, chip_id_masked=not any(parsed.chip_id),
        reported_tcb=SnpTcb.decode(parsed.reported_tcb, product),
        current_tcb=SnpTcb.decode(parsed.current_tcb, product),
        committed_tcb=SnpTcb.decode(parsed.committed_tcb, product),
        launch_tcb=SnpTcb.decode(parsed.launch_tcb, product),
        chain=tuple(walks.fingerprint(each) for each in chain),
        not_after=min(each.not_valid_after_utc for each in chain), revocation=revoked)
