"""RA-TLS certificates: one key, one certificate, one evidence; whatever is exchanged or flipped is refused."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from appliance.attestation import binding
from appliance.attestation.case import certified
from appliance.attestation.collect import ratls
from appliance.attestation.collect.attestor import Attestor, BoundFacts, BoundKey
from appliance.attestation.collect.tsm import TsmProvider
from appliance.attestation.evidence import Evidence, Provider
from appliance.attestation.judge import verify
from appliance.attestation.judge.examine import examine
from appliance.attestation.judge.material import Material
from appliance.attestation.simulated.collecting.collector import SimulatedProvider
from appliance.attestation.tpm import container
from appliance.attestation.trust.roots import Roots
from appliance.codec import cbor, cborreader
from appliance.errors import AttestationError, ForgedEvidenceError, MalformedEvidenceError
from tests.fuzz import driver, ratls_fuzz
from tests.support import fake_tpm
from tests.support.fake_amd import NOW, FakeAmd
from tests.support.fake_tsm import FakeTsm, certificate_table

POLICY = b"\x07" * 48
HOUR = dt.timedelta(hours=1)


def _attestor(provider: Provider) -> Attestor:
    return Attestor(provider, BoundFacts(POLICY, b"\x02" * 48, binding.Build(version="0.1.0")))


def _made(attestor: Attestor, key: ec.EllipticCurvePrivateKey, names: tuple[str, ...] = ()) -> bytes:
    """A certificate as the service makes it."""
    public = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    attestor.bind_tls_key(hashlib.sha256(public).digest())
    nonce = hashlib.sha256(b"appliance/ra-tls/v1\n" + public).digest()
    certificate = ratls.issue(key, attestor.attest(nonce), names, not_before=NOW - HOUR, not_after=NOW + HOUR)
    return certificate.public_bytes(Encoding.DER)


def _key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


@pytest.fixture(scope="module")
def amd() -> FakeAmd:
    return FakeAmd("Milan")


@pytest.fixture(scope="module")
def snp(amd: FakeAmd) -> bytes:
    """A certificate of an SEV-SNP guest with its chain."""
    aux = certificate_table({name: each.public_bytes(Encoding.DER) for name, each in (
        ("VCEK", amd.leaf), ("ASK", amd.ask), ("ARK", amd.ark))})
    tsm = FakeTsm(lambda data: amd.report(report_data=data), aux=aux)
    return _made(_attestor(TsmProvider(cast(Any, tsm))), _key(), ("a.example", "b.example"))


def test_a_certificate_carries_what_verifies(snp: bytes, amd: FakeAmd) -> None:
    """A stranger who knows the root alone gets from the certificate to claims about its very key, offline."""
    carried = certified.parse(snp)
    public = x509.load_der_x509_certificate(snp).public_key().public_bytes(
        Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert (hashlib.sha256(public).digest(), ("a.example", "b.example")) == (carried.spki_sha256, carried.names)
    claims = verify.verify(carried.evidence, at=NOW, roots=Roots(amd=amd.roots))
    assert (carried.nonce, carried.spki_sha256.hex()) == (
        claims.nonce, getattr(claims.statement, "tls_spki_sha256", None))
    assert carried == certified.parse(x509.load_der_x509_certificate(snp).public_bytes(Encoding.PEM))


def test_the_evidence_stands_in_the_extension_as_specified(snp: bytes) -> None:
    """A conceptual message of type, bytes and cm-type 4 in 2.23.133.5.4.9, read by another library's X.509."""
    extension = x509.load_der_x509_certificate(snp).extensions.get_extension_for_oid(
        x509.ObjectIdentifier("2.23.133.5.4.9"))
    assert not extension.critical
    value = cborreader.decode(extension.value.public_bytes())
    assert isinstance(value, list)
    assert ("application/vnd.appliance.evidence.v1+json", 4) == (value[0], value[2])
    assert b'{"collateral":' == value[1][:14]  # type: ignore[index]


def test_examination_of_a_certificate(snp: bytes, amd: FakeAmd) -> None:
    """`appliance evidence` recognises it, follows it to its root, and minds its time."""
    found = examine(Material(snp, Path("x.der"), roots=Roots(amd=amd.roots)), at=NOW)
    assert ("genuine", True) == (found.verdict, found.kind.startswith("RA-TLS certificate"))
    late = examine(Material(snp, Path("x.der"), roots=Roots(amd=amd.roots)), at=NOW + 2 * HOUR)
    assert ("cannot tell", "certificate-expired") == (late.verdict, late.code)


def test_flipped_bytes_are_refused(snp: bytes, amd: FakeAmd) -> None:
    """Every seventh byte of a certificate, flipped: malformed or forged, and never another error."""
    accepted, codes = [], set()
    for at in range(0, len(snp), 7):
        flipped = snp[:at] + bytes((snp[at] ^ 1 << at % 8,)) + snp[at + 1:]
        try:
            certified.parse(flipped)
        except AttestationError as error:
            codes.add(error.code)
            continue
        accepted.append(at)
    assert [] == accepted
    assert "ra-tls-signature" in codes


def _resigned(carried: Evidence, key: ec.EllipticCurvePrivateKey, signer: ec.EllipticCurvePrivateKey | None = None,
              *, issuer: str = "appliance RA-TLS", hashing: Any = None, value: bytes | None = None) -> bytes:
    """A certificate that somebody else made, by hand."""
    def name(common: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])

    wrapped = cbor.encode([ratls.MEDIA_TYPE, carried.to_json(), 4]) if value is None else value
    builder = x509.CertificateBuilder().subject_name(name("appliance RA-TLS")).issuer_name(name(issuer)).public_key(
        key.public_key()).serial_number(9).not_valid_before(NOW).not_valid_after(NOW + HOUR).add_extension(
        x509.UnrecognizedExtension(x509.ObjectIdentifier("2.23.133.5.4.9"), wrapped), critical=False)
    return builder.sign(signer or key, hashing or hashes.SHA256()).public_bytes(Encoding.DER)


def test_evidence_in_another_keys_certificate_is_forged(snp: bytes) -> None:
    """Valid evidence, spliced into the certificate of whoever sits between: the key is named."""
    carried = certified.parse(snp).evidence
    with pytest.raises(ForgedEvidenceError) as caught:
        certified.parse(_resigned(carried, _key()))
    assert "ra-tls-key" == caught.value.code


def test_evidence_for_a_nonce_is_not_for_a_certificate() -> None:
    """What /v1/attestation answers about the same key does not pass in a certificate."""
    attestor, key = _attestor(SimulatedProvider(bytes(32))), _key()
    _made(attestor, key)
    with pytest.raises(ForgedEvidenceError) as caught:
        certified.parse(_resigned(attestor.attest(bytes(32)), key))
    assert "ra-tls-nonce" == caught.value.code


def test_only_its_own_key_may_sign() -> None:
    """A certificate that names our key but was signed by another, or with another hash or curve, is refused."""
    attestor, key = _attestor(SimulatedProvider(bytes(32))), _key()
    carried = certified.parse(_made(attestor, key)).evidence
    with pytest.raises(ForgedEvidenceError) as caught:
        certified.parse(_resigned(carried, key, _key()))
    assert "ra-tls-signature" == caught.value.code
    for changes in ({"issuer": "Some CA"}, {"hashing": hashes.SHA384()}):
        with pytest.raises(MalformedEvidenceError, match="not signed by itself with SHA-256"):
            certified.parse(_resigned(carried, key, **changes))
    with pytest.raises(MalformedEvidenceError, match=r"not of P-256"):
        certified.parse(_resigned(carried, ec.generate_private_key(ec.SECP384R1())))


@pytest.mark.parametrize("value", [
    b"", b"\x80", cbor.encode([ratls.MEDIA_TYPE]), cbor.encode([ratls.MEDIA_TYPE, b"{}", 8]),
    cbor.encode([ratls.MEDIA_TYPE, "{}", 4]), cbor.encode(["application/json", b"{}", 4]), cbor.encode(7),
    cbor.encode([ratls.MEDIA_TYPE, b"{}", 4]) + b"\0",
])
def test_other_messages_are_refused(value: bytes, snp: bytes) -> None:
    """Another type, another shape, or bytes that are left over."""
    with pytest.raises(AttestationError):
        certified.parse(_resigned(certified.parse(snp).evidence, _key(), value=value))


def test_a_certificate_hidden_in_another_is_not_read(snp: bytes) -> None:
    """PEM of a good certificate inside of DER of a bad one must not be taken for the bad one's content."""
    pem = x509.load_der_x509_certificate(snp).public_bytes(Encoding.PEM)
    hidden = b"\x30\x82" + len(pem).to_bytes(2, "big") + pem
    for data in (hidden, pem + pem, b"", b"\x30\x00", bytes(ratls.MAX_BYTES + 1)):
        if data == pem + pem:
            assert certified.parse(data) == certified.parse(snp)  # the first: what a TLS stack hands over is one
            continue
        with pytest.raises(MalformedEvidenceError):
            certified.parse(data)


def test_a_key_that_was_never_bound_is_not_attested() -> None:
    """Evidence on a connection binds that connection's key, old or new, and no stranger's."""
    attestor = _attestor(SimulatedProvider(bytes(32)))
    old, new = b"\x01" * 32, b"\x02" * 32
    assert (1, 2) == (attestor.bind_tls_key(old), attestor.bind_tls_key(new))
    for key in (old, new, None):
        evidence, = attestor.attest_all([bytes(32)], BoundKey(key))
        assert (None if key is None else key.hex()) == evidence.statement["tls_spki_sha256"]
        assert 2 == evidence.statement["generation"]
    with pytest.raises(AttestationError) as caught:
        attestor.attest_all([bytes(32)], BoundKey(b"\x03" * 32))
    assert "tls-key-unknown" == caught.value.code


class LongTpm(Provider):
    """TPM evidence with an event log of a given size, by a key in software."""

    platform = "tpm"

    def __init__(self, log_bytes: int) -> None:
        self._log = fake_tpm.event_log([(9, 1, b"x" * log_bytes)])

    def collect(self, report_data: bytes) -> Any:
        from appliance.attestation.evidence import ReportWithCollateral

        message = fake_tpm.quote(nonce=container.qualifying_data(report_data))
        return ReportWithCollateral(container.TpmEvidence(
            message, fake_tpm.sign(message), fake_tpm.public(), b"".join(fake_tpm.PCRS.values()),
            self._log).to_bytes())


def test_long_event_logs_stay_out_of_certificates() -> None:
    """A certificate must fit into a handshake: a long log is left out, a short one stays; both verify."""
    for size, kept in ((1000, True), (100_000, False)):
        carried = certified.parse(_made(_attestor(LongTpm(size)), _key()))
        assert kept == (container.parse(carried.evidence.report_bytes()).log is not None)


def test_a_hosts_documents_push_no_chain_out_of_a_certificate() -> None:
    """The report's own collateral comes first, and stays; of what comes behind it, what fits."""
    own = (b"vcek" * 300, b"ask" * 400, b"ark" * 400)

    class WithCollateral(SimulatedProvider):
        def collect(self, report_data: bytes) -> Any:
            return super().collect(report_data)._replace(collateral=(*own, bytes(12_000), b"crl" * 600))

    carried = certified.parse(_made(_attestor(WithCollateral(bytes(32))), _key()))
    assert (*own, b"crl" * 600) == tuple(base64.b64decode(each) for each in carried.evidence.collateral)


def test_a_certificate_that_is_too_large_is_not_made() -> None:
    """Names without end do not make a certificate that clients refuse."""
    with pytest.raises(MalformedEvidenceError) as caught:
        _made(_attestor(SimulatedProvider(bytes(32))), _key(), tuple(f"{n}.{'x' * 50}.example" for n in range(1000)))
    assert "ra-tls-size" == caught.value.code


def test_certificates_survive_mutations() -> None:
    """Thousands of mutated certificates raise nothing but attestation errors, and none passes that was altered."""
    _, finding = driver.run(ratls_fuzz.fuzz, ratls_fuzz.seeds(), seconds=0, seed=1, least=4000)
    assert None is finding
