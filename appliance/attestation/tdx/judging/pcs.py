"""The requests to Intel's Provisioning Certification Service (PCS) that a TDX quote needs, and its
raw answers.

Source: "API Documentation, Intel SGX and Intel TDX Provisioning Certification Service", version 4.
The TCB information is named by the platform's FMSPC, which the PCK certificate in the quote tells.
Answers are JSON whose signature covers the bytes of one value, and whose signers' certificates come
in a response header.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from appliance.attestation.tdx.judging import pck as tdx_pck
from appliance.attestation.x509 import walks
from appliance.attestation.x509.judging.pcs_answer import IDENTITY, TCB, PcsAnswer
from appliance.attestation.x509.judging.requests import Request
from appliance.errors import UnsupportedEvidenceError

SERVICE = "https://api.trustedservices.intel.com"
CERTIFICATES = "https://certificates.trustedservices.intel.com"
_SIGNING = "Intel SGX TCB Signing"


def fmspc(pck: x509.Certificate) -> str | None:
    """The FMSPC in a PCK certificate, in hex; None where it names no platform."""
    try:
        return tdx_pck.read(pck).fmspc.hex()
    except UnsupportedEvidenceError:
        return None


def tcb(platform: str, *, early: bool = False) -> Request:
    """The request for Intel's TCB information of a kind of platform; with `early`, for the one that
    will be the standard one."""
    return Request(f"{SERVICE}/tdx/certification/v4/tcb?fmspc={platform.upper()}{'&update=early' if early else ''}",
                   f"intel-tdx-tcb-{platform.lower()}.json", f"Intel's judgement of the platform {platform.lower()}",
                   "json", ("TCB-Info-Issuer-Chain", "SGX-TCB-Info-Issuer-Chain"))


def identity(*, early: bool = False) -> Request:
    """Which quoting enclave is Intel's; with `early`, which will be by the next standard."""
    return Request(f"{SERVICE}/tdx/certification/v4/qe/identity{'?update=early' if early else ''}",
                   "intel-tdx-qe-identity.json",
                   "the identity of Intel's quoting enclave", "json", ("SGX-Enclave-Identity-Issuer-Chain",))


def pck_list(issuer: str) -> Request:
    """The revocation list of the authority that issued the PCK, by its common name."""
    kind = "processor" if "Processor" in issuer else "platform"
    return Request(f"{SERVICE}/sgx/certification/v4/pckcrl?ca={kind}&encoding=der", f"intel-pck-{kind}.crl",
                   f"the list of revoked PCK certificates of the {kind} authority", "list")


def root_list() -> Request:
    """The revocation list of Intel's root."""
    return Request(f"{CERTIFICATES}/IntelSGXRootCA.der", "intel-root.crl",
                   "the list of certificates that Intel's root revoked", "list")


def quote_requests(chain: Sequence[x509.Certificate], *, early: bool = False) -> list[Request]:
    """The requests that a quote needs, by the chain in it: PCK, intermediate, root."""
    platform = fmspc(chain[0])
    first = [] if platform is None else [tcb(platform, early=early)]
    return [*first, identity(early=early), pck_list(walks.common_name(chain[0].issuer) or ""), root_list()]


@dataclass(frozen=True)
class JoinedAnswers:
    """The parts of collateral for one quote that are at hand, each the newest; `lacking`: what
    would fetch the rest."""

    document: dict[str, str]
    lacking: list[Request]


def join(chain: Sequence[x509.Certificate], answers: Sequence[PcsAnswer], crls: Sequence[
        x509.CertificateRevocationList], certificates: Sequence[x509.Certificate], at: datetime) -> JoinedAnswers:
    """Raw answers and lists as one document, in the form of Intel's own quote library. Nothing of
    it is verified for the caller: what holds at `at` is only preferred to what does not."""
    pck, authority, root = chain
    platform = fmspc(pck)
    document: dict[str, str] = {"pck_crl_issuer_chain": _pem([authority, root])}
    lacking: list[Request] = []
    signers = _signers(certificates, root)
    for name, field, request in ((TCB, "tcb_info", tcb(platform) if platform else None),
                                 (IDENTITY, "qe_identity", identity())):
        one, signer = _best_answer(answers, name, platform, signers, at)
        if one is not None and signer is not None:
            document |= {field: one.text, f"{field}_signature": one.signature,
                         f"{field}_issuer_chain": _pem([signer, root])}
        elif request is not None:
            lacking.append(request)
    for field, issuer, request in (("pck_crl", authority, pck_list(walks.common_name(authority.subject) or "")),
                                   ("root_ca_crl", root, root_list())):
        best = max((each for each in crls if each.issuer == issuer.subject),
                   key=lambda crl: (_listed_by(crl, issuer), _in_force(crl, at), crl.last_update_utc), default=None)
        if best is None:
            lacking.append(request)
        else:
            document[field] = best.public_bytes(Encoding.DER).hex()
    return JoinedAnswers(document, lacking)


def _listed_by(crl: x509.CertificateRevocationList, issuer: x509.Certificate) -> bool:
    key = issuer.public_key()
    return isinstance(key, ec.EllipticCurvePublicKey) and crl.is_signature_valid(key)


def _in_force(crl: x509.CertificateRevocationList, at: datetime) -> bool:
    return crl.next_update_utc is not None and crl.last_update_utc <= at < crl.next_update_utc


def _best_answer(answers: Sequence[PcsAnswer], name: str, platform: str | None, signers: Sequence[x509.Certificate],
                 at: datetime) -> tuple[PcsAnswer | None, x509.Certificate | None]:
    """The newest answer that one of the signers signed and that is in force, with that signer; else
    the newest of what there is."""
    fitting = [each for each in answers if each.name == name and not each.misfit and (
        name != TCB or str(each.value.get("fmspc")).lower() == platform)]
    pairs = [(each, next((signer for signer in signers if each.signed_by(signer)), None)) for each in fitting]
    best = max(pairs, key=lambda pair: (pair[1] is not None, pair[0].in_force(at), pair[0].issued),
               default=(None, None))
    newest = max(signers, key=lambda each: each.not_valid_after_utc, default=None)
    return best[0], best[1] or newest


def _pem(chain: Sequence[x509.Certificate]) -> str:
    return b"".join(each.public_bytes(Encoding.PEM) for each in chain).decode()


def _signers(certificates: Sequence[x509.Certificate], root: x509.Certificate) -> list[x509.Certificate]:
    """The certificates of Intel's TCB signing key at hand, under the quote's root."""
    return [each for each in dict.fromkeys(certificates)
            if walks.common_name(each.subject) == _SIGNING and walks.fits(each, root)]
