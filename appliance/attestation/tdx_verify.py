"""From a TDX quote to authentic claims: signatures and chain here, the TCB's standing through dcap-qvl.

The quote is signed by an attestation key, which the quoting enclave (QE) made; the QE's report, signed by the
platform's PCK, binds that key; the PCK's chain, inside of the quote, leads to Intel's root. That is checked here. It
proves little by itself: whether that QE is Intel's and what is known of the platform's TCB only Intel's signed
documents tell (collateral). Those are judged by the `dcap-qvl` package, which only a client needs.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding

from appliance.attestation import pcs, requests, revocation, tdx_abi, x509chain
from appliance.attestation.collateral import Collateral
from appliance.attestation.tdx_abi import Quote
from appliance.attestation.trust import intel
from appliance.attestation.x509chain import name_of
from appliance.errors import (
    ForgedEvidenceError,
    MalformedEvidenceError,
    RejectedEvidenceError,
    UncheckedEvidenceError,
    UnsupportedEvidenceError,
)

_SGX_EXTENSION = "1.2.840.113741.1.13.1"  # what Intel's PCK certificates say of the platform
_FIELDS = ("pck_crl_issuer_chain", "root_ca_crl", "pck_crl", "tcb_info_issuer_chain", "tcb_info",
           "tcb_info_signature", "qe_identity_issuer_chain", "qe_identity", "qe_identity_signature")
_ATTRIBUTES = re.compile(
    "Debug mode is enabled|Reserved bits in TD|SEPT_VE_DISABLE|TD (migration|profiling) is|Invalid MR service TD")
_LEVEL = re.compile("No matching TCB level|TDX module TCB level|current TDX TCB|QE ISVSVN")
_TIME_HINT = "fetch collateral again, or judge by another time with --at"
_TIME = re.compile(r"expired|in the future|not yet valid|NotValidYet|CertExpired|CrlExpired", re.IGNORECASE)


@dataclass(frozen=True)
class Tcb:
    """Intel's judgement of the platform: the worse of platform and QE, and the documents it rests on."""

    status: str                     # "UpToDate", "OutOfDate", ... as Intel spells it
    advisories: tuple[str, ...]
    evaluation_number: int          # tcbEvaluationDataNumber
    fmspc: str                      # hex
    smt: bool | None                # whether hyper-threading is on, if the PCK tells
    issued: datetime
    next_update: datetime
    oldest: datetime                # of TCB information, QE identity and the PCK's revocation list, when it was issued


@dataclass(frozen=True)
class TdxClaims:
    """What an authentic quote says, and how its platform stands."""

    quote: Quote
    tcb: Tcb
    chain: tuple[str, ...]          # SHA-256 of PCK, intermediate, root


def _p256_signed(key: ec.EllipticCurvePublicKey, signature: bytes, data: bytes) -> bool:
    r, s = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big")
    try:
        key.verify(encode_dss_signature(r, s), data, ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, ValueError):
        return False
    return True


def _attestation_key(quote: Quote) -> ec.EllipticCurvePublicKey:
    try:
        return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), b"\x04" + quote.attestation_key)
    except ValueError:
        raise ForgedEvidenceError("TDX quote: the attestation key is no point of P-256", code="tdx-key") from None


def _chain(quote: Quote) -> list[x509.Certificate]:
    """The certificates, which must be PEM in its usual form to the byte: PCK, intermediate, root."""
    text = quote.chain.rstrip(b"\x00")
    chain = x509chain.load(text, "TDX quote")
    if text.rstrip(b"\n") != b"".join(each.public_bytes(Encoding.PEM) for each in chain).rstrip(b"\n"):
        raise MalformedEvidenceError("TDX quote: the chain is not PEM in its usual form")
    if len(chain) != 3:
        raise MalformedEvidenceError(f"TDX quote: {len(chain)} certificates, expected PCK, intermediate and root")
    return chain


def verify_signatures(quote: Quote, *, at: datetime, root: str = intel.ROOT) -> tuple[str, ...]:
    """Everything that holds without collateral; returns the chain's fingerprints.

    Not enough to trust a quote: that the QE is Intel's is not among it. Raises ForgedEvidenceError.
    """
    chain = _chain(quote)
    pck, authority, top = chain
    for child, issuer in ((pck, authority), (authority, top), (top, top)):
        x509chain.check_issued(child, issuer)
    if x509chain.fingerprint(top) != root:
        raise ForgedEvidenceError(
            f"certificate {name_of(top)}: not the pinned root of Intel ({x509chain.fingerprint(top)})",
            code="chain-root")
    x509chain.check_authority(top, below=1)
    x509chain.check_authority(authority, below=0)
    for certificate in chain:
        x509chain.check_critical(certificate)
        x509chain.check_valid(certificate, at)
    key = pck.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not _p256_signed(key, quote.qe.signature, quote.qe.raw):
        raise ForgedEvidenceError("TDX quote: the QE report's signature is not by the PCK", code="tdx-qe-signature")
    bound = hashlib.sha256(quote.attestation_key + quote.qe.authentication_data).digest() + bytes(32)
    if not hmac.compare_digest(bound, quote.qe.report_data):
        raise ForgedEvidenceError("TDX quote: the QE report does not bind the attestation key", code="tdx-qe-binding")
    if not _p256_signed(_attestation_key(quote), quote.signature, quote.signed):
        raise ForgedEvidenceError("TDX quote: the signature is not by its attestation key", code="tdx-signature")
    return tuple(x509chain.fingerprint(each) for each in chain)


def _library() -> Any:
    try:
        return importlib.import_module("dcap_qvl")
    except ImportError:
        raise UncheckedEvidenceError(
            "TDX quote: the TCB could not be checked, the dcap-qvl package is not installed", code="tdx-library",
            hint="pip install 'dcap-qvl>=0.7,<0.8'") from None


def _platform(library: Any, quote: bytes) -> tuple[str, str]:
    """FMSPC and PCE id, in hex, that the PCK names. Raises UnsupportedEvidenceError where it names none: Intel's root
    stands above it, so that is no forgery."""
    try:
        pck = library.parse_quote(quote).pck_extension()
    except ValueError as error:
        raise UnsupportedEvidenceError(f"TDX quote: its PCK names no platform ({error})", code="tdx-pck") from None
    if pck is None:
        raise UnsupportedEvidenceError(
            f"TDX quote: its PCK names no platform (extension {_SGX_EXTENSION} is absent or lacks a field)",
            code="tdx-pck")
    return pck.fmspc.hex(), pck.pce_id.hex()


def _document(library: Any, quote: bytes, collateral: Collateral) -> tuple[dict[str, str], dict[str, Any]]:
    """The collateral for this quote's platform (by FMSPC and PCE), and its TCB information, not yet verified."""
    wanted, chain = _platform(library, quote), _chain(tdx_abi.parse(quote))
    joined = pcs.join(chain, collateral.answers, collateral.crls, collateral.certificates)
    fitting: list[tuple[dict[str, str], dict[str, Any]]] = []
    for document in (*collateral.documents, dict[str, object](joined.document)):
        fields = {name: document.get(name) for name in _FIELDS}
        if not all(isinstance(value, str) for value in fields.values()):
            continue
        try:
            info = json.loads(str(fields["tcb_info"]))
            if (str(info["fmspc"]).lower(), str(info["pceId"]).lower()) == wanted:
                fitting.append(({name: str(value) for name, value in fields.items()}, info))
        except (ValueError, RecursionError, LookupError, TypeError):
            continue
    if fitting:
        return max(fitting, key=lambda each: str(each[1].get("issueDate")))  # the first of several that are as new
    missing = joined.lacking or pcs.quote_requests(chain)
    raise collateral.unchecked(
        f"TDX quote: for the platform {wanted[0]}, {len(missing)} of 4 parts of Intel's collateral are absent: "
        + "; ".join(each.why for each in missing), requests.told(missing, "Intel's PCS"), code="tdx-collateral")


def _check_issuers(fields: Mapping[str, str], root: str, at: datetime) -> None:
    """The chains that come with Intel's documents: usual PEM to the byte, up to the root, and valid at `at`.

    dcap-qvl verifies the documents by them and judges their times, but does not read every byte of them.
    """
    for name in ("pck_crl_issuer_chain", "tcb_info_issuer_chain", "qe_identity_issuer_chain"):
        text = fields[name].encode(errors="replace")
        chain = x509chain.load(text, f"TDX collateral, {name}")
        if text.strip() != b"".join(each.public_bytes(Encoding.PEM) for each in chain).strip() or len(chain) != 2:
            raise MalformedEvidenceError(f"TDX collateral: {name} is not two certificates in PEM in its usual form")
        child, top = chain
        x509chain.check_issued(child, top)
        x509chain.check_issued(top, top)
        if x509chain.fingerprint(top) != root:
            raise ForgedEvidenceError(
                f"TDX collateral: {name} does not lead to the pinned root of Intel", code="chain-root")
        for certificate in chain:
            _check_time(name, certificate, at)


def _check_time(name: str, certificate: x509.Certificate, at: datetime) -> None:
    try:
        x509chain.check_valid(certificate, at)
    except UncheckedEvidenceError as error:
        raise UncheckedEvidenceError(f"TDX collateral, {name}: {error.summary}", code="tdx-collateral-time",
                                     hint=_TIME_HINT) from None


def _check_revocation(quote: Quote, fields: Mapping[str, str], at: datetime) -> datetime:
    """No certificate of the quote's chain is revoked, by lists that are in force; said here by name, which dcap-qvl's
    errors do not, and it takes lists of the future. Returns when the PCK's list was issued: the root's lives for a
    year."""
    crls = {}
    for name in ("root_ca_crl", "pck_crl"):
        try:
            crls[name] = revocation.load(bytes.fromhex(fields[name]), f"TDX collateral, {name}")
        except ValueError:
            raise MalformedEvidenceError(f"TDX collateral: {name} is not hex") from None
    revocation.check(_chain(quote), crls.values(), signed=_signed_crl, at=at)
    for name, crl in crls.items():
        if crl.next_update_utc is None or not crl.last_update_utc <= at < crl.next_update_utc:
            raise UncheckedEvidenceError(
                f"TDX collateral: {name} is of {crl.last_update_utc:%Y-%m-%dT%H:%M:%SZ} and not in force at "
                f"{at:%Y-%m-%dT%H:%M:%SZ}", code="tdx-collateral-time", hint=_TIME_HINT)
    return crls["pck_crl"].last_update_utc


def _signed_crl(crl: x509.CertificateRevocationList, authority: x509.Certificate) -> bool:
    key = authority.public_key()
    return isinstance(key, ec.EllipticCurvePublicKey) and crl.is_signature_valid(key)


def _judge(library: Any, quote: bytes, fields: Mapping[str, str], at: datetime, root: bytes | None) -> dict[str, Any]:
    """dcap-qvl's report. Its errors tell what they are about in words only."""
    try:
        document = library.QuoteCollateralV3.from_json(json.dumps(dict(fields)))
        seconds = int(at.timestamp())
        policy = library.QuotePolicy.claims_only(seconds)
        claims = library.QuoteVerifier(root).verify_with_policy(quote, document, seconds, policy)
        judged: dict[str, Any] = json.loads(claims.to_json())
    except ValueError as error:
        text = f"TDX quote: {error}"
        if _ATTRIBUTES.search(text):
            raise RejectedEvidenceError(
                f"{text}: dcap-qvl gives no judgement of such a TD", code="tdx-attributes") from None
        if _LEVEL.search(text):
            raise RejectedEvidenceError(f"{text}: at no level that Intel lists", code="tdx-tcb-level") from None
        if "revoked" in text.lower():
            raise ForgedEvidenceError(text, code="certificate-revoked") from None
        if _TIME.search(text):
            raise UncheckedEvidenceError(
                f"{text} at {at:%Y-%m-%dT%H:%M:%SZ}", code="tdx-collateral-time", hint=_TIME_HINT) from None
        raise ForgedEvidenceError(text, code="tdx-collateral-invalid") from None
    return judged


def verify(quote: bytes, collateral: Collateral, *, at: datetime, root: str = intel.ROOT,
           root_der: bytes | None = None) -> TdxClaims:
    """The claims of an authentic quote.

    `root` and `root_der`: fingerprint and certificate of another root than Intel's, for tests only. Raises
    MalformedEvidenceError, UnsupportedEvidenceError; ForgedEvidenceError if a signature, the chain or the collateral
    does not hold, or the platform is revoked; UncheckedEvidenceError if collateral is absent or not of the time
    `at`, or the dcap-qvl package is; RejectedEvidenceError for a TD whose attributes that package refuses to judge
    (debug or profiled, without SEPT_VE_DISABLE, migratable).
    """
    parsed = tdx_abi.parse(quote)
    chain = verify_signatures(parsed, at=at, root=root)
    library = _library()
    fields, info = _document(library, quote, collateral)
    _check_issuers(fields, root, at)
    listed = _check_revocation(parsed, fields, at)
    return TdxClaims(parsed, _tcb(_judge(library, quote, fields, at, root_der), info, fields, listed), chain)


def _tcb(judged: Mapping[str, Any], info: Mapping[str, Any], fields: Mapping[str, str], listed: datetime) -> Tcb:
    try:
        issued = datetime.fromisoformat(info["issueDate"])
        identity = datetime.fromisoformat(json.loads(fields["qe_identity"])["issueDate"])
        tcb, smt = judged["tcb"], judged["platform"]["pck"].get("smt_enabled")
        return Tcb(
            status=str(tcb["status"]), advisories=tuple(sorted(map(str, tcb["advisory_ids"]))),
            evaluation_number=int(tcb["eval_data_number"]), fmspc=str(info["fmspc"]).lower(),
            smt={"True": True, "False": False}.get(str(smt)), issued=issued,
            next_update=datetime.fromisoformat(info["nextUpdate"]), oldest=min(issued, identity, listed))
    except (ValueError, LookupError, TypeError, AttributeError):
        raise MalformedEvidenceError("TDX collateral: TCB information without number or dates") from None
