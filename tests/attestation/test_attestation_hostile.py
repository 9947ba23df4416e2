"""Certificates, lists and chains by somebody who knows DER: refused, and by nothing but our errors."""

from __future__ import annotations

import copy
import os
import random
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa, x25519
from cryptography.hazmat.primitives.serialization import Encoding

from appliance.attestation.case import certified
from appliance.attestation.collect import ratls
from appliance.attestation.judge import collateral_folder, recognise
from appliance.attestation.snp.judging import verify as snp_verify
from appliance.attestation.trust.roots import Roots
from appliance.attestation.x509 import walks
from appliance.attestation.x509.judging import collateral, revocation
from appliance.attestation.x509.judging import dice as x509dice
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.client import Verifier, certificate
from appliance.codec import der
from appliance.errors import AttestationError, ForgedEvidenceError, MalformedEvidenceError, UncheckedEvidenceError
from appliance.policy import load
from appliance.policy.digest import host_data
from tests.support import extent, fake_amd
from tests.support import fake_appliance as fake
from tests.support.fake_amd import NOW, FakeAmd, name

AMD = FakeAmd("Genoa")
REPORT = AMD.report()
PSS = padding.PSS(padding.MGF1(hashes.SHA384()), salt_length=48)
CONSTRUCTED = {0x30, 0x31, 0xA0, 0xA3}
TAGS = (1, 2, 3, 4, 5, 6, 9, 0x0C, 0x13, 0x16, 0x17, 0x18, 0x30, 0x31, 0xA0, 0xA3, 0x80)
LENGTHS = (b"\x84\xff\xff\xff\xff", b"\x88" + b"\xff" * 8, b"\x80", b"\xff" * 21, b"\x82\x00\x01", b"\x00")
Node = list[Any]  # tag, content or None, children or None


def _parse(data: bytes) -> list[Node]:
    return [[each.tag, None, _parse(each.content)] if each.tag in CONSTRUCTED else [each.tag, each.content, None]
            for each in der.elements(data)]


def _build(nodes: list[Node]) -> bytes:
    found = b""
    for tag, content, children in nodes:
        inner = content if children is None else _build(children)
        size = len(inner).to_bytes((len(inner).bit_length() + 7) // 8 or 1, "big")
        found += bytes((tag,)) + (size if len(inner) < 128 else bytes((0x80 | len(size),)) + size) + inner
    return found


def _paths(nodes: list[Node], before: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    for index, (_, _, children) in enumerate(nodes):
        yield (*before, index)
        yield from _paths(children or [], (*before, index))


def _tag(node: Node, beside: list[Node], at: int, rng: random.Random) -> None:
    node[0] = rng.choice([tag for tag in TAGS if tag != node[0]])


def _twice(node: Node, beside: list[Node], at: int, rng: random.Random) -> None:
    beside.insert(at, copy.deepcopy(node))


def _without(node: Node, beside: list[Node], at: int, rng: random.Random) -> None:
    del beside[at]


def _negative(node: Node, beside: list[Node], at: int, rng: random.Random) -> None:
    node[1], node[2] = b"\x80" + (node[1] or b""), None


def _other(node: Node, beside: list[Node], at: int, rng: random.Random) -> None:
    node[1], node[2] = rng.choice((b"", b"\xff" * 9, rng.randbytes(300), b"\x30\x84\x7f\xff\xff\xff")), None


def _altered(data: bytes, rng: random.Random, count: int) -> Iterator[bytes]:
    """One element is of another type, there twice, absent, negative or nonsense, or says that it is longer than all."""
    tree = _parse(data)
    assert data == _build(tree)
    everywhere = list(_paths(tree))
    for _ in range(count):
        copied, path = copy.deepcopy(tree), rng.choice(everywhere)
        beside = copied
        for index in path[:-1]:
            beside = beside[index][2]
        rng.choice((_tag, _twice, _without, _negative, _other))(beside[path[-1]], beside, path[-1], rng)
        if (made := _build(copied)) != data:
            yield made
    for _ in range(count // 4):
        place = rng.randrange(min(len(data), 1000))
        if (made := data[:place] + rng.choice(LENGTHS) + data[place + 1:]) != data:
            yield made


def _with(item: bytes, *certificates: x509.Certificate) -> snp_verify.SnpClaims:
    known = Collateral(certificates=fake_amd.reread(list(certificates)))
    known.add(item, "x.der")
    return snp_verify.verify(REPORT, known, at=NOW, roots=AMD.roots)


@pytest.fixture(scope="module")
def attested(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Verifier]:
    """A good RA-TLS certificate, and who verifies it."""
    path = fake.write_policy(tmp_path_factory.mktemp("hostile"), "sev-snp")
    policy, key = load(path), fake.key()
    source = fake.SnpSource(AMD, host_data(policy.digest))
    nonce = ratls.nonce_for(ratls.spki(key.public_key()))
    made = fake.attestor(source, policy, spki_sha256=fake.spki(key)).attest(nonce)
    day = timedelta(days=1)
    shown = ratls.issue(key, made, ["a.example"], not_before=NOW - day, not_after=NOW + day)
    judge = fake.verifier(path, roots=Roots(amd=AMD.roots), collateral=Collateral(crls=[AMD.crl()]))
    assert judge.verify_certificate(shown.public_bytes(Encoding.DER)).verified
    return shown.public_bytes(Encoding.DER), judge


@pytest.mark.parametrize("which", ["leaf", "ask", "ark", "crl", "ratls"])
def test_altered_der_is_refused(attested: tuple[bytes, Verifier], which: str) -> None:
    """Wherever it stands in the chain: no alteration verifies, none raises anything but our errors."""
    chain = {"leaf": AMD.leaf, "ask": AMD.ask, "ark": AMD.ark}
    ways: list[Callable[[bytes], bool]]
    if which == "ratls":
        data, judge = attested
        ways = [lambda item: judge.verify_certificate(item).verified, lambda item: bool(certified.parse(item)),
                lambda item: bool(certificate.check(item, at=NOW))]
    elif which == "crl":
        data = AMD.crl(serial=99).public_bytes(Encoding.DER)
        ways = [lambda item: _with(item, *chain.values()).revocation is not None]
    else:
        data = chain.pop(which).public_bytes(Encoding.DER)
        ways = [lambda item: bool(_with(item, *chain.values()))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # names that are too long or empty
        for item in _altered(data, random.Random(which), extent.examples(120, 300)):
            recognise.recognise(item)
            for way in ways:
                try:
                    assert not way(item), item.hex()
                except AttestationError:
                    continue


def _self_made(subject: str, key: Any, signer: Any, hashing: Any = None, **scheme: Any) -> x509.Certificate:
    builder = x509.CertificateBuilder().subject_name(name(subject)).issuer_name(name("ARK-Genoa")).public_key(
        key).serial_number(5).not_valid_before(fake_amd.START).not_valid_after(fake_amd.END)
    return builder.sign(signer, hashing, **scheme)


SIZES = ((15, 3), ((1 << 512) - 569, 65537), ((1 << 1023) + 1, 65537), ((1 << 16400) + 1, 3))  # modulus, exponent


def _misfits(common: str) -> Iterator[x509.Certificate]:
    """Certificates for RSA keys that no library would make, and for keys of other kinds, one that cannot sign."""
    stranger = fake_amd.rsa_key("stranger")
    curve, edwards = fake_amd.ec_key("stranger"), ed25519.Ed25519PrivateKey.generate()
    for modulus, exponent in SIZES:
        weak = rsa.RSAPublicNumbers(exponent, modulus).public_key()
        yield _self_made(common, weak, stranger, hashes.SHA384(), rsa_padding=PSS)
    yield _self_made(common, curve.public_key(), curve, hashes.SHA384())
    yield _self_made(common, edwards.public_key(), edwards)
    agreement = x25519.X25519PrivateKey.generate().public_key()
    yield _self_made(common, agreement, stranger, hashes.SHA384(), rsa_padding=PSS)


@pytest.mark.parametrize("common", ["SEV-Genoa", "ARK-Genoa"])
def test_keys_of_another_kind_or_strength_sign_no_chain(common: str) -> None:
    """In the place of an authority: forged. Beside the chain: as if it were not there, also where an authority is
    looked for."""
    others = [each for each in (AMD.leaf, AMD.ask, AMD.ark) if walks.common_name(each.subject) != common]
    for each in _misfits(common):
        with pytest.raises(ForgedEvidenceError, match="signature"):
            _with(each.public_bytes(Encoding.DER), *others)
    for each in _misfits("Somebody"):
        assert "Genoa" == _with(each.public_bytes(Encoding.DER), AMD.leaf, AMD.ask, AMD.ark).product
        with pytest.raises(UncheckedEvidenceError):
            _with(each.public_bytes(Encoding.DER), *others)


@pytest.mark.parametrize("suffix", ["3.1", "3.9", "2", "4", "5"])
@pytest.mark.parametrize("value", [
    b"", b"\x02\x01\xff", b"\x02\x02\x00\x01", b"\x02\x02\xff\x01", b"\x02\x01", b"\x02\x81\x01\x01",
    b"\x02\x05" + b"\x01" * 5, b"\x01\x01\xff", b"\x04\x01\x01", b"\x05\x00", b"\x0a\x01\x01",
    b"\x16\x84\xff\xff\xff\xffA", b"\x16\x01", b"\x16\x00", b"\x16\x01\xe9",
    b"\x16\x02A\x00", b"\x0c\x05Turin", b"\x04\x40" + bytes(63), b"\x30\x00"], ids=bytes.hex)
def test_extensions_of_another_type_are_refused(suffix: str, value: bytes) -> None:
    """A negative, too long, not shortest or absent number, another type, no text: under the right signature."""
    other = FakeAmd("Turin", options={"leaf": {"extensions": {suffix: value}}})
    known = other.collateral()
    with pytest.raises((MalformedEvidenceError, ForgedEvidenceError)):
        snp_verify.verify(other.report(), known, at=NOW, roots=other.roots)


def test_a_certificate_with_evidence_twice_is_refused(attested: tuple[bytes, Verifier]) -> None:
    """Its own key signed it, and each of the two would do: but which one is judged must not be a matter of parsers."""
    key = fake.key()
    data, judge = attested
    value = der.certificate(data).extensions[x509dice.EVIDENCE_OID]
    part = [[0x30, None, [[6, bytes.fromhex("678105050409"), None], [4, value, None]]]]
    tree = _parse(fake.certificate(key))
    tree[0][2][0][2].append([0xA3, None, [[0x30, None, part + part]]])
    signed = key.sign(_build([tree[0][2][0]]), ec.ECDSA(hashes.SHA256()))
    tree[0][2][2] = [3, b"\0" + signed, None]
    doubled = _build(tree)
    assert "evidence invalid" == judge.verify_certificate(doubled).status
    assert not certified.is_ours(doubled)
    with pytest.raises(MalformedEvidenceError):
        certificate.check(doubled, at=NOW)
    with pytest.raises(MalformedEvidenceError, match="twice"):
        der.certificate(doubled)


def _with_identifier(data: bytes, identifier: bytes) -> bytes:
    """The certificate with another object identifier on its first extension."""
    tree = _parse(data)
    extensions = next(part for part in tree[0][2][0][2] if part[0] == 0xA3)
    extensions[2][0][2][0][2][0][1] = identifier
    return _build(tree)


@pytest.mark.parametrize("digits", [127, 3000, 200_000])
def test_a_long_object_identifier_is_refused(attested: tuple[bytes, Verifier], digits: int) -> None:
    """Of thousands of digits it has no decimal form in Python, and adding them up takes the square of its length."""
    data = _with_identifier(attested[0], b"\x2a" + b"\x81" * digits + b"\x01")
    with pytest.raises(MalformedEvidenceError, match="object identifier"):
        der.certificate(data)
    assert not certified.is_ours(data)
    assert 1 == attested[1].verify_certificate(data).exit_code


def test_what_has_too_many_elements_is_refused_before_they_are_counted() -> None:
    """A file of zeros is one empty element after the other, each an object of hundreds of bytes."""
    assert der.MAX_ELEMENTS == len(der.elements(bytes(2 * der.MAX_ELEMENTS)))
    zeros = bytes(1 << 21)
    tracemalloc.start()
    try:
        with pytest.raises(MalformedEvidenceError, match="side by side"):
            der.certificate(zeros)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def _list(*extensions: tuple[Any, bool], serial: int = 99, signer: str = "ark") -> x509.CertificateRevocationList:
    builder = x509.CertificateRevocationListBuilder().issuer_name(name("ARK-Genoa")).last_update(
        NOW - timedelta(days=1)).next_update(NOW + timedelta(days=1))
    for value, critical in extensions:
        builder = builder.add_extension(value, critical)
    entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(NOW).build()
    made = builder.add_revoked_certificate(entry).sign(fake_amd.rsa_key(signer), hashes.SHA384(), rsa_padding=PSS)
    return revocation.load(made.public_bytes(Encoding.DER), "test")


def _point(**only: Any) -> x509.IssuingDistributionPoint:
    facts: dict[str, Any] = {
        "full_name": None, "relative_name": None, "only_contains_user_certs": False, "only_contains_ca_certs": False,
        "only_some_reasons": None, "indirect_crl": False, "only_contains_attribute_certs": False, **only}
    return x509.IssuingDistributionPoint(**facts)


PLACE = [x509.UniformResourceIdentifier("https://kdsintf.amd.com/vcek/v1/Genoa/crl")]


@pytest.mark.parametrize(("extensions", "counts"), [
    ((), True), (((x509.CRLNumber(4), False),), True), (((_point(full_name=PLACE), True),), True),
    (((_point(only_contains_ca_certs=True), True),), False), (((_point(only_contains_user_certs=True), True),), False),
    (((_point(only_some_reasons=frozenset([x509.ReasonFlags.key_compromise])), True),), False),
    (((x509.DeltaCRLIndicator(3), True),), False), (((x509.CRLNumber(4), True),), False)])
def test_a_list_of_a_part_shows_nothing_of_the_rest(extensions: tuple[tuple[Any, bool], ...], counts: bool) -> None:
    """A delta or partial list, or one that says something critical and unknown: never "not revoked"; what it revokes
    is revoked."""
    known = AMD.collateral()
    known.crls.append(_list(*extensions))
    assert counts == (snp_verify.verify(REPORT, known, at=NOW, roots=AMD.roots).revocation is not None)
    known.crls = [_list(*extensions, serial=0x10001)]
    with pytest.raises(ForgedEvidenceError) as caught:
        snp_verify.verify(REPORT, known, at=NOW, roots=AMD.roots)
    assert "certificate-revoked" == caught.value.code


def test_a_revoked_vcek_stays_revoked(attested: tuple[bytes, Verifier]) -> None:
    """By a list that has expired, and beside a newer one without it; another issuer's list is about others."""
    gone = AMD.crl(serial=7, of="SEV-Genoa", start=NOW - timedelta(days=400), end=NOW - timedelta(days=300))
    milan = FakeAmd("Milan").crl(serial=7, of="SEV-Milan")
    data, judge = attested
    for lists, code in (([gone], "certificate-revoked"), ([AMD.crl(), gone], "certificate-revoked"),
                        ([milan], "unchecked-revocation"), ([milan, AMD.crl()], "")):
        with_lists = fake.verifier(judge.reference.policy.path, roots=Roots(amd=AMD.roots),
                                   collateral=Collateral(crls=lists))
        assert code == with_lists.verify_certificate(data).code


def test_what_cannot_be_read_in_a_folder_is_passed_over(tmp_path: Path) -> None:
    """A pipe, a link to nowhere, a device, a folder: the rest is collateral, and nothing hangs."""
    (tmp_path / "ark.pem").write_bytes(AMD.ark.public_bytes(Encoding.PEM))
    (tmp_path / "folder").mkdir()
    (tmp_path / "nowhere").symlink_to(tmp_path / "absent")
    (tmp_path / "zero").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "huge.pem").write_bytes(b"")
    os.truncate(tmp_path / "huge.pem", collateral.MAX_FILE_BYTES + 1)
    found = collateral_folder.load(tmp_path)
    assert ([walks.fingerprint(AMD.ark)], []) == (
        [walks.fingerprint(each) for each in found.certificates], found.problems)
