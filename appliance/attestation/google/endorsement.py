"""Google's launch endorsement of a firmware: which MRTDs and launch digests its machines have.

Source: google/gce-tcb-verifier, proto/endorsement.proto (VMLaunchEndorsement, VMGoldenMeasurement)
and verify/verify.go. The golden measurement is signed by RSASSA-PSS with SHA-256 under a
certificate that stands in it, which GCE-cc-tcb-root_1 issued. The root is pinned by its hash, which
a project that has the file publishes; Google publishes the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from appliance.attestation.google.wire import Message
from appliance.attestation.x509 import walks
from appliance.errors import ForgedEvidenceError, UncheckedEvidenceError

ROOT = "e876bc6978bf4f3da445f98a0a82363c8c0bae5a1fc033c6df65846a6cb0f18c"  # SHA-256 of the DER certificate
ROOT_FILE, ROOT_URL = "GCE-cc-tcb-root_1.crt", "https://pki.goog/cloud_integrity/GCE-cc-tcb-root_1.crt"
MAX_BYTES, MAX_SHAPES, MRTD_BYTES = 1 << 18, 256, 48
_SCHEME = padding.PSS(padding.MGF1(hashes.SHA256()), salt_length=32)


@dataclass(frozen=True)
class TdxLaunch:
    """An MRTD, and the shape that it is of. `ram_gib` is None where it is of every shape."""

    mrtd: bytes
    ram_gib: int | None
    early_accept: bool


@dataclass(frozen=True)
class LaunchEndorsement:
    """A verified endorsement. `snp`: launch digests by the number of save areas. A security version
    is None where Google says nothing of that kind of machine."""

    issued: datetime
    firmware_sha384: bytes
    tdx_svn: int | None
    tdx: tuple[TdxLaunch, ...]
    snp_svn: int | None
    snp: Mapping[int, bytes]
    signer: str
    until: datetime  # the end of the signer's certificate, or of the root's where that is sooner


def read(data: bytes, *, at: datetime, certificates: Iterable[x509.Certificate] = (),
         root: str = ROOT) -> LaunchEndorsement:
    """Verify an endorsement, and return what it says.

    `certificates`: where the root may be, beside the bundle in the endorsement. Raises
    MalformedEvidenceError, ForgedEvidenceError where a signature does not hold, and
    UncheckedEvidenceError where the root is absent or a certificate is out of its time.
    """
    outer = Message(_bounded(data), "launch endorsement")
    signed = outer.content(1)
    golden = Message(signed, "golden measurement")
    leaf, until = _leaf(golden, at, certificates, root)
    key = leaf.public_key()
    if not isinstance(key, rsa.RSAPublicKey) or key.key_size < walks.MIN_RSA_BITS:
        raise golden.malformed("its certificate has no RSA key of 2,048 bits at least")
    try:
        key.verify(outer.content(2), signed, _SCHEME, hashes.SHA256())
    except (InvalidSignature, ValueError):
        raise ForgedEvidenceError(
            f"launch endorsement: the signature does not verify under {walks.name_of(leaf)}",
            code="gce-endorsement-signature", hint="fetch it again: appliance collateral fetch --gce") from None
    return _said(golden, walks.name_of(leaf), until)


def _bounded(data: bytes) -> bytes:
    if not 1 <= len(data) <= MAX_BYTES:
        raise Message(b"", "launch endorsement").malformed(f"{len(data)} bytes, expected 1 to {MAX_BYTES}")
    return data


def _leaf(golden: Message, at: datetime, others: Iterable[x509.Certificate], pin: str
          ) -> tuple[x509.Certificate, datetime]:
    """The certificate that signs, after its short chain holds, and when the first of both ends."""
    leaf = walks.load(golden.content(4), "certificate of the launch endorsement")[0]
    bundle = golden.content(6)
    candidates = [*others, *(walks.load(bundle, "bundle of the launch endorsement") if bundle.strip() else ())]
    root = next((each for each in candidates if walks.fingerprint(each) == pin), None)
    if root is None:
        raise UncheckedEvidenceError(
            f"launch endorsement: the root certificate is not at hand (SHA-256 {pin})", code="gce-root-absent",
            hint=f"put it beside the endorsement, as {ROOT_FILE}: {ROOT_URL}")
    walks.check_issued(leaf, root)
    walks.check_critical(leaf, (x509.ExtendedKeyUsage.oid,))
    for each in (root, leaf):
        walks.check_valid(each, at)
    return leaf, min(each.not_valid_after_utc for each in (root, leaf))


def shaped(data: bytes) -> None:
    """Raise MalformedEvidenceError unless `data` has the form of an endorsement. Nothing is
    verified."""
    outer = Message(_bounded(data), "launch endorsement")
    golden = Message(outer.content(1), "golden measurement")
    if not outer.content(2) or not golden.content(4):
        raise golden.malformed("it has no signature, or no certificate")


def _said(golden: Message, signer: str, until: datetime) -> LaunchEndorsement:
    stamp = golden.message(1, "timestamp")
    tdx, snp = golden.message(8, "VMTdx"), golden.message(7, "VMSevSnp")
    found = LaunchEndorsement(
        datetime.fromtimestamp(0 if stamp is None else stamp.number(1, (1 << 33) - 1), UTC),
        golden.content(5, 48), None if tdx is None else tdx.number(1), () if tdx is None else _tdx(tdx),
        None if snp is None else snp.number(1), {} if snp is None else _snp(snp), signer, until)
    if not found.tdx and not found.snp:
        raise golden.malformed("names neither an MRTD nor a launch digest")
    return found


def _tdx(said: Message) -> tuple[TdxLaunch, ...]:
    rows = [TdxLaunch(each.content(3, MRTD_BYTES), each.number(1, 1 << 16) or None, bool(each.number(2, 1)))
            for each in said.messages(2, "VMTdx.Measurement")]
    if len(rows) > MAX_SHAPES:
        raise said.malformed(f"{len(rows)} measurements, at most {MAX_SHAPES}")
    return tuple(rows)


def _snp(said: Message) -> dict[int, bytes]:
    entries = [(each.number(1), each.content(2, 48)) for each in said.messages(2, "VMSevSnp.measurements")]
    found = dict(entries)
    if len(found) != len(entries) or len(found) > MAX_SHAPES or 0 in found:
        raise said.malformed("a number of save areas is zero, or stands twice")
    return found

