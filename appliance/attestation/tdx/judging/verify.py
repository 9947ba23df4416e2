"""From a TDX quote to authentic claims: signatures, chain, and the TCB's standing by Intel's signed
documents.

`tdx/signatures` checks what holds without Intel's documents, which proves little by itself. Only
these signed documents (collateral) tell whether the quoting enclave (QE) is Intel's, and what is
known of the platform's TCB. Their signatures and dates are checked here, and `tcb` judges by their
contents.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from appliance.attestation.tdx import abi, signatures
from appliance.attestation.tdx.abi import TdxQuote
from appliance.attestation.tdx.judging import pck as tdx_pck
from appliance.attestation.tdx.judging import pcs
from appliance.attestation.tdx.judging import tcb as tdx_tcb
from appliance.attestation.tdx.judging.levels import REVOKED
from appliance.attestation.tdx.judging.pck import Pck
from appliance.attestation.tdx.judging.tcb import Standing
from appliance.attestation.tdx.signatures import SignedTdxQuote, p256_signed, verify_signatures
from appliance.attestation.x509 import walks
from appliance.attestation.x509.judging import pcs_answer, requests, revocation
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.attestation.x509.walks import name_of
from appliance.errors import (
    AttestationError,
    ForgedEvidenceError,
    MalformedEvidenceError,
    UncheckedEvidenceError,
)

Chain = tuple[x509.Certificate, ...]
_Life = tuple[datetime, datetime]
SignedCrl = Callable[[x509.CertificateRevocationList, x509.Certificate], bool]
_FIELDS = ("pck_crl_issuer_chain", "root_ca_crl", "pck_crl", "tcb_info_issuer_chain", "tcb_info",
           "tcb_info_signature", "qe_identity_issuer_chain", "qe_identity", "qe_identity_signature")
_ISSUERS = ("pck_crl_issuer_chain", "tcb_info_issuer_chain", "qe_identity_issuer_chain")
_LISTS = ("root_ca_crl", "pck_crl")
_ANSWERS = (("tcb_info", pcs_answer.TCB), ("qe_identity", pcs_answer.IDENTITY))
_SIGNATURE = re.compile("[0-9a-fA-F]{128}")
_SIGNER = "Intel SGX TCB Signing"
MAX_DOCUMENTS = 16  # that are tried
_TIME_HINT = "fetch collateral again, or judge by another time with --at"


@dataclass(frozen=True)
class TdxTcb:
    """Intel's judgement of the platform: the worse of platform and QE, and the documents it rests
    on."""

    status: str                     # "UpToDate", "OutOfDate", ... as Intel spells it
    advisories: tuple[str, ...]
    evaluation_number: int          # tcbEvaluationDataNumber, the lower of both documents'
    fmspc: str                      # hex
    smt: bool | None                # whether hyper-threading is on, if the PCK tells
    issued: datetime
    next_update: datetime           # of TCB information and QE identity, the earlier one
    oldest: datetime                # of TCB information, QE identity and the PCK's revocation list, when it was issued
    since: datetime | None = None   # the oldest tcbDate of the levels that are out of date
    overdue: tuple[str, ...] = ()   # the advisories of those levels
    lives: tuple[tuple[datetime, datetime], ...] = ()  # from when until when each document and list is valid
    wanting: tuple[str, ...] = ()   # the security versions that have to rise, if it is out of date


@dataclass(frozen=True)
class TdxClaims:
    """The claims of an authentic quote, and how its platform stands."""

    quote: TdxQuote
    tcb: TdxTcb
    chain: tuple[str, ...]          # SHA-256 of PCK, intermediate, root
    pck: Pck                        # what the PCK certificate says of its platform


def _documents(pck: Pck, chain: Sequence[x509.Certificate], collateral: Collateral, parts: Collateral,
               at: datetime) -> list[dict[str, str]]:
    """The collateral for this quote's platform (by FMSPC and PCE), not yet verified: first the
    newest of each of the parts at hand, then documents as others put them together, the newest
    first."""
    wanted = pck.fmspc.hex(), pck.pce_id.hex()
    joined = pcs.join(chain, parts.answers, parts.crls, parts.certificates, at)
    whole = joined.document if set(_FIELDS) <= set(joined.document) else None
    fitting: list[tuple[dict[str, str], str]] = []  # and when it says that it was issued
    for document in collateral.documents:
        fields = {name: document.get(name) for name in _FIELDS}
        if not all(isinstance(value, str) for value in fields.values()):
            continue
        try:
            info = json.loads(str(fields["tcb_info"]))
            if (str(info["fmspc"]).lower(), str(info["pceId"]).lower()) == wanted:
                fitting.append(({name: str(value) for name, value in fields.items()}, str(info.get("issueDate"))))
        except (ValueError, RecursionError, LookupError, TypeError):
            continue
    if fitting or whole:  # sorted: of several that are as new, the first comes first
        rest = [fields for fields, _ in sorted(fitting, key=lambda each: each[1], reverse=True)]
        return [whole, *rest] if whole else rest
    missing = joined.lacking or pcs.quote_requests(chain)
    raise collateral.unchecked(
        f"TDX quote: for the platform {wanted[0]}, {len(missing)} of 4 parts of Intel's collateral are absent: "
        + "; ".join(each.why for each in missing), requests.told(missing, "Intel's PCS"), code="tdx-collateral")


def _parts(documents: Sequence[Mapping[str, object]]) -> Collateral:
    """The answers, lists and certificates in documents. A host that puts today's TCB information
    beside an old list or identity must not choose for a client who has newer ones."""
    texts = {name: dict.fromkeys(str(each.get(name)) for each in documents) for name in (*_ISSUERS, *_LISTS)}
    answers = dict.fromkeys(f'{{"{kind}":{each.get(name)},"signature":"{each.get(f"{name}_signature")}"}}'
                            for each in documents for name, kind in _ANSWERS)
    found = Collateral()
    for text in (*answers, *(text for of in texts.values() for text in of)):
        found.add(text.encode(errors="replace"), "a document")
    return found


def _issuers(fields: Mapping[str, str], signed: SignedTdxQuote, root: str, at: datetime) -> dict[str, Chain]:
    """The chains that come with Intel's documents, by field: each text is checked once. The
    documents are verified by the first certificate of each."""
    chains: dict[str, Chain] = {}
    for name in _ISSUERS:
        same = [chain for other, chain in chains.items() if fields[other] == fields[name]]
        chains[name] = same[0] if same else _issuer_chain(name, fields[name], signed.chain[-1], root, at)
    return chains


def _issuer_chain(name: str, text: str, known: x509.Certificate, root: str, at: datetime) -> Chain:
    """One chain: usual PEM to the byte, up to the root, and valid at `at`; `known` is a root that
    is its own issuer."""
    data = text.encode(errors="replace")
    chain = walks.load(data, f"TDX collateral, {name}")
    if data.strip() != b"".join(each.public_bytes(Encoding.PEM) for each in chain).strip() or len(chain) != 2:
        raise MalformedEvidenceError(f"TDX collateral: {name} is not two certificates in PEM in its usual form")
    child, top = chain
    walks.check_issued(child, top)
    if top != known:
        walks.check_issued(top, top)
    if walks.fingerprint(top) != root:
        raise ForgedEvidenceError(
            f"TDX collateral: {name} does not lead to the pinned root of Intel", code="chain-root")
    for certificate in chain:
        walks.check_critical(certificate)
        _check_time(name, certificate, at)
    return tuple(chain)


def _check_time(name: str, certificate: x509.Certificate, at: datetime) -> None:
    try:
        walks.check_valid(certificate, at)
    except UncheckedEvidenceError as error:
        raise UncheckedEvidenceError(f"TDX collateral, {name}: {error.summary}", code="tdx-collateral-time",
                                     hint=_TIME_HINT) from None


def _check_revocation(chain: Chain, chains: Mapping[str, Chain], fields: Mapping[str, str], at: datetime
                      ) -> tuple[_Life, ...]:
    """No certificate of the quote's chain, nor of the documents', is revoked, by lists that are in
    force.

    Returns when each list was issued and when it ends, that of the PCK's authority last: the root's
    lives for long.
    """
    crls = {}
    for name in _LISTS:
        try:
            crls[name] = revocation.load(bytes.fromhex(fields[name]), f"TDX collateral, {name}")
        except ValueError:
            raise MalformedEvidenceError(f"TDX collateral: {name} is not hex") from None
    signed = _once(_signed_crl)
    for issuers in dict.fromkeys((chain, *chains.values())):
        revocation.check(issuers, crls.values(), signed=signed, at=at)
    for name, crl in crls.items():
        if crl.next_update_utc is None or not crl.last_update_utc <= at < crl.next_update_utc:
            raise UncheckedEvidenceError(
                f"TDX collateral: {name} is of {crl.last_update_utc:%Y-%m-%dT%H:%M:%SZ} and not in force at "
                f"{at:%Y-%m-%dT%H:%M:%SZ}", code="tdx-collateral-time", hint=_TIME_HINT)
    for name, below in (("pck_crl", chain), ("root_ca_crl", chain[1:])):
        if crls[name].issuer != below[1].subject or revocation.check(
                below, [crls[name]], signed=signed, at=at) is None:
            raise UncheckedEvidenceError(
                f"TDX collateral: {name} is not the whole list of {name_of(below[1])}", code="tdx-collateral",
                hint=_TIME_HINT)
    return tuple((crl.last_update_utc, crl.next_update_utc or crl.last_update_utc) for crl in crls.values())


def _never_revoked(chain: Chain, lists: Sequence[x509.CertificateRevocationList], at: datetime) -> None:
    """No list at hand that an authority of the quote's chain signed revokes a certificate of it,
    whatever other list would be taken. Others are passed over."""
    signed = [each for each in lists if any(
        authority.subject == each.issuer and _signed_crl(each, authority) for authority in chain[1:])]
    revocation.check(chain, signed, signed=lambda *_: True, at=at)


def _signed_crl(crl: x509.CertificateRevocationList, authority: x509.Certificate) -> bool:
    key = authority.public_key()
    return isinstance(key, ec.EllipticCurvePublicKey) and crl.is_signature_valid(key)


def _once(check: SignedCrl) -> SignedCrl:
    """A check that asks only once about the same list and authority; a list has no hash, so its
    place stands for it."""
    known: dict[tuple[int, x509.Certificate], bool] = {}

    def checked(crl: x509.CertificateRevocationList, authority: x509.Certificate) -> bool:
        key = id(crl), authority
        if key not in known:
            known[key] = check(crl, authority)
        return known[key]

    return checked


def _signed(fields: Mapping[str, str], signer: x509.Certificate, name: str, at: datetime) -> dict[str, Any]:
    """One of Intel's documents, signed over its exact text by the TCB signing certificate and in
    its time at `at`."""
    key, text = signer.public_key(), fields[name].encode(errors="replace")
    if not _SIGNATURE.fullmatch(fields[f"{name}_signature"]):
        raise MalformedEvidenceError(f"TDX collateral: the signature of {name} is not 64 bytes in hex")
    if (walks.common_name(signer.subject) != _SIGNER or not isinstance(key, ec.EllipticCurvePublicKey)
            or not p256_signed(key, bytes.fromhex(fields[f"{name}_signature"]), text)):
        raise ForgedEvidenceError(f"TDX collateral: {name} is not signed by Intel's TCB signing key",
                                  code="tdx-collateral-invalid")
    document: dict[str, Any] = json.loads(text)
    issued, until = _date(document["issueDate"]), _date(document["nextUpdate"])
    if not issued <= at <= until:
        raise UncheckedEvidenceError(
            f"TDX collateral: {name} is of {issued:%Y-%m-%dT%H:%M:%SZ}, valid until {until:%Y-%m-%dT%H:%M:%SZ}, and "
            f"not in force at {at:%Y-%m-%dT%H:%M:%SZ}", code="tdx-collateral-time", hint=_TIME_HINT)
    return document


def _date(text: str) -> datetime:
    date = datetime.fromisoformat(text)
    if date.tzinfo is None:
        raise ValueError(text)
    return date


def verify(quote: bytes, collateral: Collateral, *, at: datetime, root: str = signatures.ROOT,
           root_der: bytes | None = None) -> TdxClaims:
    """The claims of an authentic quote.

    `root`: fingerprint of another root than Intel's, for tests only; `root_der` is no longer read.
    Raises MalformedEvidenceError and UnsupportedEvidenceError. Raises ForgedEvidenceError if a
    signature, the chain or the collateral does not hold, or the platform is revoked. Raises
    UncheckedEvidenceError if collateral is absent or not of the time `at`. Raises
    RejectedEvidenceError for a platform below every TCB level that Intel lists, or another TDX
    module than Intel's.
    """
    return authenticate(verify_signatures(abi.parse(quote), at=at, root=root), collateral, at=at, root=root)


def authenticate(signed: SignedTdxQuote, collateral: Collateral, *, at: datetime,
                 root: str = signatures.ROOT) -> TdxClaims:
    """The claims of a quote whose signatures hold, if Intel's documents vouch for its platform.
    Raises as `verify`."""
    pck = tdx_pck.read(signed.chain[0])
    mixed = len(collateral.documents) > 1 or collateral.answers or collateral.crls
    parts = collateral.joined(_parts(collateral.documents)) if mixed else collateral
    _never_revoked(signed.chain, parts.crls, at)
    vouched = _vouched(_documents(pck, signed.chain, collateral, parts, at), signed, root, at)
    try:
        standing = tdx_tcb.judge(signed.quote, pck, vouched.info, vouched.identity)
        tcb = _tcb(standing, pck, vouched)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise MalformedEvidenceError("TDX collateral: TCB information or QE identity lacks a number or date") from None
    if tcb.status == REVOKED:
        raise ForgedEvidenceError("TDX quote: Intel revoked this platform's TCB", code="certificate-revoked")
    return TdxClaims(signed.quote, tcb, signed.fingerprints, pck)


@dataclass(frozen=True)
class _Documents:
    """Intel's documents, whose signatures hold and which are in force. `lists`: when each
    revocation list was issued and when it ends, that of the PCK's authority last."""

    info: Mapping[str, Any]
    identity: Mapping[str, Any]
    lists: tuple[_Life, ...]


def _vouched(documents: Sequence[Mapping[str, str]], signed: SignedTdxQuote, root: str, at: datetime) -> _Documents:
    """Return the first of the documents that holds: a stray file is never worse than none.

    Raises the first one's error where none holds. Raises at once where an authentic list revokes a
    certificate, since an old file is no way around a new one.
    """
    first: AttestationError | None = None
    for fields in documents[:MAX_DOCUMENTS]:
        try:
            return _authentic(fields, signed, root, at)
        except AttestationError as error:
            if error.code == "certificate-revoked":
                raise
            first = first or error
    raise first or UncheckedEvidenceError("TDX quote: Intel's collateral is absent", code="tdx-collateral")


def _authentic(fields: Mapping[str, str], signed: SignedTdxQuote, root: str, at: datetime) -> _Documents:
    chains = _issuers(fields, signed, root, at)
    lists = _check_revocation(signed.chain, chains, fields, at)
    try:
        info, identity = (_signed(fields, chains[f"{name}_issuer_chain"][0], name, at)
                          for name in ("tcb_info", "qe_identity"))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise MalformedEvidenceError("TDX collateral: TCB information or QE identity lacks a number or date") from None
    return _Documents(info, identity, lists)


def _tcb(standing: Standing, pck: Pck, vouched: _Documents) -> TdxTcb:
    info, identity = vouched.info, vouched.identity
    lives = tuple((_date(each["issueDate"]), _date(each["nextUpdate"])) for each in (info, identity))
    return TdxTcb(
        status=standing.status, advisories=standing.advisories, smt=pck.smt, fmspc=pck.fmspc.hex(),
        evaluation_number=min(int(each["tcbEvaluationDataNumber"]) for each in (info, identity)),
        issued=lives[0][0], next_update=min(ends for _, ends in lives),
        oldest=min(*(start for start, _ in lives), vouched.lists[-1][0]),
        since=standing.since, overdue=standing.overdue, lives=(*lives, *vouched.lists), wanting=standing.wanting)
