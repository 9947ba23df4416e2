"""SEV-SNP reports: real ones verify, altered ones do not, and each rule of the chain has a case that breaks it."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.serialization import Encoding

from appliance import packaged
from appliance.attestation.judge import collateral_folder
from appliance.attestation.snp import layout
from appliance.attestation.snp.judging import abi as snp_abi
from appliance.attestation.snp.judging import verify as snp_verify
from appliance.attestation.snp.judging.abi import SnpTcb
from appliance.attestation.snp.judging.pss import signed_with_pss_sha384
from appliance.attestation.snp.layout import REPORT_BYTES
from appliance.attestation.trust import amd
from appliance.attestation.x509 import walks
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.errors import (
    AttestationError,
    DamagedError,
    ForgedEvidenceError,
    MalformedEvidenceError,
    UncheckedEvidenceError,
    UnsupportedEvidenceError,
)
from appliance.policy.bulletins import lines
from appliance.policy.schema.platform import ISSUED_AS, PRODUCTS
from tests.support import extent, fake_amd
from tests.support.fake_amd import NOW, FakeAmd
from tests.support.vectors import need

AT = datetime(2026, 7, 1, tzinfo=UTC)


def _verify(fake: FakeAmd, report: bytes, **changes: Any) -> snp_verify.SnpClaims:
    facts: dict[str, Any] = {"at": NOW, "roots": fake.roots, **changes}
    return snp_verify.verify(report, facts.pop("collateral", fake.collateral()), **facts)


@pytest.mark.parametrize(("name", "product", "version", "tcb", "debug"), [
    ("milan_report.bin", "Milan", 3, (4, 0, 24, 219), False),
    ("genoa_report.bin", "Genoa", 3, (10, 0, 23, 84), False),
    ("debug_policy_report.bin", "Milan", 2, (2, 0, 5, 68), True),
])
def test_real_reports_verify_against_the_pinned_roots(
        name: str, product: str, version: int, tcb: tuple[int, ...], debug: bool) -> None:
    """Reports made by real processors verify with AMD's certificates, whatever else lies in the folder."""
    folder = need("snp")
    claims = snp_verify.verify((folder / name).read_bytes(), collateral_folder.load(folder), at=AT)
    found = claims.reported_tcb
    assert (product, version, tcb, debug) == (
        claims.product, claims.report.version, (found.bootloader, found.tee, found.snp, found.microcode),
        claims.report.policy.debug)
    assert (amd.ROOTS[product], "vcek") == (claims.chain[-1], claims.signing_key)
    assert (product == "Milan") == (claims.revocation is not None)  # a list of Milan's lies there
    assert claims.revocation is None or not claims.revocation.in_force(AT)


def test_amds_list_is_fresh_while_it_is_in_force() -> None:
    """AMD's list for Milan of 2025-05-06 lives until 2026-05-12."""
    folder = need("snp")
    report, known = (folder / "milan_report.bin").read_bytes(), collateral_folder.load(folder)
    for day, fresh in ((datetime(2026, 2, 6, tzinfo=UTC), True), (datetime(2026, 5, 11, tzinfo=UTC), True),
                       (datetime(2026, 5, 13, tzinfo=UTC), False)):
        found = snp_verify.verify(report, known, at=day).revocation
        assert found is not None
        assert fresh == found.in_force(day)


@pytest.mark.parametrize(("report", "leaf", "authority"), [
    ("milan_report.bin", "milan_vcek.pem", "SEV-Milan"), ("genoa_report.bin", "genoa_vcek.pem", "SEV-Genoa"),
    ("turin_attestation_report.bin", "turin_vcek.pem", "SEV-Turin"),
    ("trustee-test-vlek-report.bin", "trustee-test-vlek.der", "SEV-VLEK-Milan")])
def test_a_leaf_alone_suffices(report: str, leaf: str, authority: str) -> None:
    """The authorities above it are shipped, and lead to the pinned root; a stray file by their name does no harm."""
    known = Collateral()
    known.add(need(f"snp/{leaf}").read_bytes(), leaf)
    at = known.certificates[0].not_valid_before_utc + timedelta(days=1)
    product = authority.rpartition("-")[2]
    data = need(f"snp/{report}").read_bytes()
    claims = snp_verify.verify(data, known, at=at)
    assert (amd.AUTHORITIES[authority], amd.ROOTS[product]) == claims.chain[1:]
    known.certificates += fake_amd.reread([FakeAmd(product, vlek="VLEK" in authority).ask])
    assert claims == snp_verify.verify(data, known, at=at)


def test_what_is_shipped_makes_no_chain_trusted() -> None:
    """A hierarchy of the same names needs its own authority, and ends at a root that is not pinned."""
    fake = FakeAmd()
    leaf = Collateral(certificates=fake_amd.reread([fake.leaf]))
    with pytest.raises(UncheckedEvidenceError, match="SEV-Milan, who issued SEV-VCEK"):
        snp_verify.verify(fake.report(), leaf, at=NOW)
    with pytest.raises(ForgedEvidenceError, match="not the pinned root"):
        snp_verify.verify(fake.report(), fake.collateral(), at=NOW)


def test_the_shipped_chains_hold() -> None:
    """Each authority is signed by the root beside it, three of each line, and nothing else is shipped."""
    assert {*amd.AUTHORITIES.values(), *amd.ROOTS.values()} == {walks.fingerprint(each) for each in amd.shipped()}
    for each in amd.shipped():
        root, = [other for other in amd.shipped() if other.subject == each.issuer]
        assert signed_with_pss_sha384(each, root.public_key())


# Fields of a byte or a few are there whole: the version and all up to the signature's algorithm, TCBs and versions.
PLACES = sorted({*extent.some(range(REPORT_BYTES), 300), *range(0x48), *range(0x180, 0x1F8)})


def _flips(report: bytes, known: Collateral, places: Sequence[int] = PLACES, **options: Any) -> dict[str, list[int]]:
    """Bytes of every field (in the soak, all bytes) flipped in turn: outcome -> places."""
    outcomes: dict[str, list[int]] = {}
    for place in places:
        flipped = bytearray(report)
        flipped[place] ^= 1 << place % 8
        try:
            snp_verify.verify(bytes(flipped), known, **options)
        except AttestationError as error:
            outcomes.setdefault(type(error).__name__, []).append(place)
        else:
            outcomes.setdefault("accepted", []).append(place)
    return outcomes


def _within(places: list[int], *fields: tuple[int, int]) -> bool:
    return all(any(at <= place < at + size for at, size in fields) for place in places)


@pytest.mark.parametrize("name", ["milan_report.bin", "genoa_report.bin", "debug_policy_report.bin"])
def test_every_flipped_byte_of_a_real_report_is_refused(name: str) -> None:
    """A flipped byte is forged; malformed where bytes are reserved; unsupported in the version and algorithm."""
    folder = need("snp")
    report, all_of_them = (folder / name).read_bytes(), collateral_folder.load(folder)
    leaf = snp_verify.verify(report, all_of_them, at=AT).chain[0]
    own = Collateral(certificates=[each for each in all_of_them.certificates if leaf == walks.fingerprint(each)])
    outcomes = _flips(report, own, at=AT)
    beside = _flips(report, all_of_them, extent.some(PLACES, 24), at=AT)  # other machines' leaves change nothing
    assert all(set(places) <= set(outcomes[outcome]) for outcome, places in beside.items())
    assert {"ForgedEvidenceError", "MalformedEvidenceError", "UnsupportedEvidenceError"} == set(outcomes)
    assert _within(outcomes["UnsupportedEvidenceError"], layout.VERSION_AT, layout.SIGNATURE_ALGO_AT)
    reserved = [(at, size) for at, size, _ in layout.RESERVED]
    assert _within(outcomes["MalformedEvidenceError"], *reserved, snp_abi.KEY_INFO_AT, snp_abi.VMPL_AT,
                   layout.VERSION_AT)


@pytest.mark.parametrize(("product", "version", "vlek"), [
    ("Milan", 2, False), ("Genoa", 4, True), ("Turin", 5, False), ("Turin", 3, True)])
def test_every_flipped_byte_of_a_report_of_each_version_is_refused(product: str, version: int, vlek: bool) -> None:
    """The same for each version and product line, signed by a VCEK or a VLEK of our own hierarchy."""
    fake = FakeAmd(product, vlek=vlek)
    report = fake.report(version=version)
    assert product == _verify(fake, report).product
    outcomes = _flips(report, fake.collateral(), at=NOW, roots=fake.roots)
    kinds = {"ForgedEvidenceError", "MalformedEvidenceError", "UnsupportedEvidenceError"}
    assert kinds | ({"UncheckedEvidenceError"} if vlek else set()) == set(outcomes)  # a VLEK names no chip


def test_another_regions_vlek_is_left_open() -> None:
    """A VLEK of the same TCB names its cloud and no chip, so a report that it did not sign may be by another."""
    fake = FakeAmd("Milan", vlek=True)
    other = FakeAmd("Milan", vlek=True, options={"leaf": {"key": fake_amd.ec_key("other")}})
    known = fake.collateral()
    known.certificates.remove(fake.leaf)
    known.certificates.append(other.leaf)
    with pytest.raises(UncheckedEvidenceError, match="VLEKs at hand are of CSP_ID"):
        _verify(fake, fake.report(), collateral=known)
    known.certificates.append(fake.leaf)
    assert "vlek" == _verify(fake, fake.report(), collateral=known).signing_key


def test_a_masked_chip_may_be_another_ones() -> None:
    """A host that hides the chip leaves open whose VCEK signed."""
    fake, other = FakeAmd(), FakeAmd(options={"leaf": {"key": fake_amd.ec_key("other")}})
    known = fake.collateral()
    known.certificates.remove(fake.leaf)
    known.certificates.append(other.leaf)
    with pytest.raises(UncheckedEvidenceError):
        _verify(fake, fake.report(chip_id=bytes(64)), collateral=known)


@pytest.mark.parametrize("name", ["milan_vcek.pem", "milan_ask.pem", "milan_ark.pem"])
def test_flipped_bytes_of_a_certificate_are_refused(name: str) -> None:
    """A certificate with one byte flipped, every 7th in turn, never carries a report to a verdict.

    In place of a flipped authority, AMD's own is taken, which is shipped: then the chain is as without the file.
    """
    folder = need("snp")
    report = (folder / "milan_report.bin").read_bytes()
    others = Collateral()
    for other in {"milan_vcek.pem", "milan_ask.pem", "milan_ark.pem"} - {name}:
        others.add((folder / other).read_bytes(), other)
    whole = Collateral()
    whole.add((folder / name).read_bytes(), name)
    der = whole.certificates[0].public_bytes(Encoding.DER)
    outcomes = {}
    for place in range(0, len(der), 7):
        flipped = bytearray(der)
        flipped[place] ^= 1 << place % 8
        known = Collateral(certificates=list(others.certificates))
        known.add(bytes(flipped), "flipped.der")
        try:
            chain = snp_verify.verify(report, known, at=AT).chain
        except (ForgedEvidenceError, MalformedEvidenceError):
            continue
        except AttestationError as error:
            outcomes[place] = repr(error)
        else:
            if name == "milan_vcek.pem" or chain[1:] != (amd.AUTHORITIES["SEV-Milan"], amd.ROOTS["Milan"]):
                outcomes[place] = "accepted"
    assert {} == {place: said for place, said in outcomes.items() if said == "accepted"}
    assert all("Unchecked" in said for said in outcomes.values()), outcomes


_SHA256 = {"padding": padding.PSS(padding.MGF1(hashes.SHA384()), salt_length=32)}


@pytest.mark.parametrize(("options", "code"), [
    ({"leaf": {"signer": "stranger"}}, "chain-signature"),
    ({"leaf": {"padding": padding.PKCS1v15()}}, "chain-signature"),
    ({"leaf": {"hash": hashes.SHA256()}}, "chain-signature"),
    ({"leaf": _SHA256}, "chain-signature"),
    ({"leaf": {"critical": {"1.2.3": b"\x05\x00"}}}, "chain-extension"),
    ({"leaf": {"extensions": {"2": fake_amd.text("Genoa-B0")}}}, "snp-product-mismatch"),
    ({"leaf": {"extensions": {"4": b"\x01" * 64}}}, "snp-chip-id"),
    ({"leaf": {"extensions": {"3.1": fake_amd.integer(3)}}}, "snp-tcb-mismatch"),
    ({"leaf": {"extensions": {"3.2": fake_amd.integer(0)}}}, "snp-tcb-mismatch"),
    ({"leaf": {"extensions": {"3.3": fake_amd.integer(255)}}}, "snp-tcb-mismatch"),
    ({"leaf": {"extensions": {"3.8": fake_amd.integer(199)}}}, "snp-tcb-mismatch"),
    ({"leaf": {"extensions": {"3.5": fake_amd.integer(1)}}}, "snp-tcb-mismatch"),
    ({"ask": {"signer": "stranger"}}, "chain-signature"),
    ({"ask": {"ca": False}}, "chain-authority"),
    ({"ask": {"ca": None}}, "chain-authority"),
    ({"ask": {"usage": False}}, "chain-authority"),
    ({"ask": {"name": "SEV-Genoa"}}, "chain-name"),
    ({"ask": {"name": "SEV-VLEK-Milan"}, "leaf": {"issuer": "SEV-VLEK-Milan"}}, "chain-name"),
    ({"ask": {"name": "Somebody"}, "leaf": {"issuer": "Somebody"}}, "chain-name"),
    ({"ark": {"name": "ARK-Genoa"}}, "chain-name"),
    ({"ark": {"name": "ARK-Genoa"}, "ask": {"issuer": "ARK-Genoa"}}, "chain-name"),
    ({"ark": {"signer": "stranger"}}, "chain-signature"),
    ({"ark": {"path_length": 0}}, "chain-authority"),
])
def test_a_broken_chain_is_forged_and_its_rule_named(options: dict[str, Any], code: str) -> None:
    """One thing wrong in an otherwise good hierarchy is refused by the rule for it."""
    fake = FakeAmd(options=options)
    with pytest.raises(ForgedEvidenceError) as caught:
        _verify(fake, fake.report())
    assert code == caught.value.code


@pytest.mark.parametrize(("where", "fields"), [
    ("leaf", {"start": NOW + timedelta(days=1)}), ("leaf", {"end": NOW - timedelta(days=1)}),
    ("ask", {"end": NOW - timedelta(days=1)}), ("ark", {"end": NOW - timedelta(days=1)})])
def test_a_chain_out_of_its_time_is_left_open(where: str, fields: dict[str, Any]) -> None:
    """Its time says nothing against what a certificate says; what is wrong besides it is told first."""
    fake = FakeAmd(options={where: fields})
    with pytest.raises(UncheckedEvidenceError, match="valid from") as caught:
        _verify(fake, fake.report())
    assert "certificate-expired" == caught.value.code
    broken = FakeAmd(options={where: fields, "leaf": {**(fields if where == "leaf" else {}),
                                                      "extensions": {"4": b"\x01" * 64}}})
    with pytest.raises(ForgedEvidenceError):
        _verify(broken, broken.report())


def test_a_vcek_for_another_curve_or_kind_does_not_verify() -> None:
    """A key that is not P-384 signs nothing."""
    fake = FakeAmd(options={"leaf": {"key": fake_amd.rsa_key("ask")}})
    with pytest.raises(ForgedEvidenceError, match="does not match the VCEK"):
        _verify(fake, fake.report())


def test_another_root_of_the_same_name_is_forged() -> None:
    """Our hierarchy is shaped like AMD's in everything but the pinned root."""
    fake = FakeAmd()
    with pytest.raises(ForgedEvidenceError) as caught:
        _verify(fake, fake.report(), roots=amd.ROOTS)
    assert "chain-root" == caught.value.code


def test_a_product_line_without_a_pinned_root_is_named() -> None:
    """A product line of the future is unsupported by its name, not guessed; so is Venice until its root is known."""
    for fake in (FakeAmd("Verano", options={"leaf": {"extensions": {"2": fake_amd.text("Verano-B0")}}}),
                 FakeAmd("Venice")):
        with pytest.raises(UnsupportedEvidenceError, match=f"{fake.product}: its root is not pinned"):
            _verify(fake, fake.report(), roots=amd.ROOTS)
    assert lines.NO_ROOT == set(PRODUCTS) - set(ISSUED_AS) - {each.lower() for each in amd.ROOTS}


@pytest.mark.parametrize(("fields", "code"), [
    ({"chip_id": b"\x02" * 64}, "snp-chip-id"),
    ({"reported": fake_amd.tcb_bytes("Milan", {"snp": 21})}, "snp-tcb-mismatch"),
    ({"cpuid": fake_amd.CPUID["Genoa"]}, "snp-product-mismatch"),
    ({"flags": 7 << 2}, "report-unsigned"),
    ({"flags": 2}, "report-unsigned"),
    ({"flags": 1 << 2}, "report-signature"),
    ({"key": fake_amd.ec_key("stranger")}, "report-signature"),
])
def test_a_report_that_contradicts_its_certificate_is_forged(fields: dict[str, Any], code: str) -> None:
    """A signed report must be of the chip, TCB, product line and key kind that its certificate was issued for."""
    if "flags" in fields and fields["flags"] == 1 << 2:
        report = bytearray(FakeAmd().report())
        report[snp_abi.KEY_INFO_AT[0]] = 1 << 2
    else:
        report = bytearray(FakeAmd().report(**fields))
    with pytest.raises(ForgedEvidenceError) as caught:
        _verify(FakeAmd(), bytes(report))
    assert code == caught.value.code


def test_a_masked_chip_id_is_told_and_accepted() -> None:
    """A host may hide which chip it is; the VCEK's signature still stands for one."""
    assert _verify(FakeAmd(), FakeAmd().report(chip_id=bytes(64))).chip_id_masked


def test_a_vlek_names_its_cloud() -> None:
    """A VLEK has no chip; its certificate says to whom AMD gave it."""
    fake = FakeAmd("Genoa", vlek=True)
    claims = _verify(fake, fake.report(chip_id=bytes(64), version=5))
    assert ("vlek", "A Cloud", "Genoa") == (claims.signing_key, claims.csp_id, claims.product)


def test_turin_has_its_own_tcb_layout() -> None:
    """On Turin the first byte is the FMC and everything moves; the chip id has eight bytes."""
    fake = FakeAmd("Turin", tcb={"fmc": 1, "bootloader": 2, "tee": 3, "snp": 4, "microcode": 81})
    claims = _verify(fake, fake.report(version=5))
    assert SnpTcb(fmc=1, bootloader=2, tee=3, snp=4, microcode=81, reserved=bytes(3)) == claims.reported_tcb
    assert (0, 0) == (claims.report.launch_mit_vector, claims.report.current_mit_vector)


def test_venice_has_three_components() -> None:
    """FMC, TEE and SNP are the first bytes of its TCB, and zeros follow (virtee/sev, pull request 396)."""
    fake = FakeAmd("Venice", tcb={"fmc": 1, "tee": 2, "snp": 3})
    claims = _verify(fake, fake.report(version=5))
    assert ("Venice", {"fmc": 1, "tee": 2, "snp": 3}) == (claims.product, claims.reported_tcb.components())
    assert bytes((1, 2, 3, 0, 0, 0, 0, 0)) == claims.reported_tcb.encode()


def test_siena_has_the_keys_of_genoa() -> None:
    """A VCEK for Siena or Genoa under Genoa's keys does for a CPU of Siena's; one for Siena under Turin's does not."""
    for name in ("Genoa", "Siena", "Siena-B0"):
        fake = FakeAmd("Genoa", options={"leaf": {"extensions": {"2": fake_amd.text(name)}}})
        assert "Genoa" == _verify(fake, fake.report(cpuid=fake_amd.SIENA, version=5)).product
    fake = FakeAmd("Turin", options={"leaf": {"extensions": {"2": fake_amd.text("Siena")}}})
    with pytest.raises(ForgedEvidenceError, match="issued for Siena under the keys of Turin"):
        _verify(fake, fake.report())


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_an_absent_certificate_is_unchecked_not_forged(missing: int) -> None:
    """Without the leaf, the root or the intermediate nothing is proved, in either direction."""
    fake = FakeAmd()
    known = fake.collateral()
    del known.certificates[missing]
    with pytest.raises(UncheckedEvidenceError):
        _verify(fake, fake.report(), collateral=known)


def test_a_certificate_of_another_chip_is_no_reason_to_call_a_report_forged() -> None:
    """A folder with other machines' certificates lacks this machine's; that is said."""
    other = FakeAmd(options={"leaf": {"extensions": {"4": b"\x01" * 64}, "key": fake_amd.ec_key("other")}})
    with pytest.raises(UncheckedEvidenceError, match="not among 1 others"):
        _verify(other, FakeAmd().report())


@pytest.mark.parametrize("extension", ["1.3.6.1.4.1.3704.1.4", "1.3.6.1.4.1.3704.1.3.1"])
def test_a_certificate_without_its_extensions_is_malformed(extension: str) -> None:
    """A VCEK that does not say its chip or its TCB is not in form."""
    fake = FakeAmd(options={"leaf": {"extensions": {extension.removeprefix(fake_amd.OID): None}}})
    with pytest.raises(MalformedEvidenceError, match="AMD certificate"):
        _verify(fake, fake.report())


@pytest.mark.parametrize(("crl", "code"), [
    ({"serial": 0x10001}, "certificate-revoked"),
    ({"serial": 7, "of": "SEV-Milan"}, "certificate-revoked"),
    ({"serial": 7, "signer": "ask", "issuer": "SEV-Milan"}, "certificate-revoked"),
    ({"serial": 1, "signer": "stranger"}, "crl-signature"),
])
def test_a_revoked_certificate_is_refused(crl: dict[str, Any], code: str) -> None:
    """A list that the root or the intermediate signed ends the trust in the certificates that it names."""
    fake = FakeAmd()
    known = fake.collateral()
    known.crls.append(fake.crl(**crl))
    with pytest.raises(ForgedEvidenceError) as caught:
        _verify(fake, fake.report(), collateral=known)
    assert code == caught.value.code


@pytest.mark.parametrize(("crl", "consulted"), [
    ({}, True), ({"serial": 7}, True), ({"issuer": "Stranger"}, False), ({"end": NOW - timedelta(hours=1)}, False),
    ({"start": NOW + timedelta(hours=1)}, False)])
def test_revocation_is_reported_as_checked_only_by_a_list_in_force(crl: dict[str, Any], consulted: bool) -> None:
    """Strangers' lists and lists of another time do not count; the same serial of another issuer is no revocation."""
    fake = FakeAmd()
    known = fake.collateral()
    known.crls.append(fake.crl(**crl))
    found = _verify(fake, fake.report(), collateral=known).revocation
    assert consulted == (found is not None and found.in_force(NOW))


def test_an_altered_revocation_list_counts_for_nothing() -> None:
    """A list with one byte flipped is refused or left aside, as if nobody had brought it: never "not revoked"."""
    fake = FakeAmd()
    report, der, outcomes = fake.report(), fake.crl().public_bytes(Encoding.DER), set()
    for place in extent.some(range(len(der)), 300):
        flipped = bytearray(der)
        flipped[place] ^= 1 << place % 8
        known = fake.collateral()
        known.add(bytes(flipped), "list.crl")
        try:
            outcomes.add(_verify(fake, report, collateral=known).revocation is not None)
        except AttestationError as error:
            outcomes.add(error.code)
    assert {False, "crl-signature"} == outcomes


def test_a_list_with_an_odd_name_says_nothing_to_the_terminal() -> None:
    """The parser warns of a country of eleven letters whenever a list's issuer is read; none of it is shown."""
    fake = FakeAmd()
    known, unit, country = fake.collateral(), bytes.fromhex("060355040b"), bytes.fromhex("0603550406")
    odd = fake.crl().public_bytes(Encoding.DER)
    assert unit in odd
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        known.add(odd.replace(unit, country), "list.crl")
        assert 1 == len(known.crls)
        assert None is _verify(fake, fake.report(), collateral=known).revocation


def test_validity_is_judged_at_the_time_given() -> None:
    """The same evidence holds at one time and not at another."""
    folder = need("snp")
    report, known = (folder / "milan_report.bin").read_bytes(), collateral_folder.load(folder)
    for at in (datetime(2026, 2, 4, tzinfo=UTC), datetime(2033, 2, 6, tzinfo=UTC)):
        with pytest.raises(UncheckedEvidenceError, match="valid from 2026-02-05 to 2033-02-05"):
            snp_verify.verify(report, known, at=at)


def test_collateral_is_found_under_any_name_in_any_form(tmp_path: Path) -> None:
    """PEM or DER, several in one file, beside junk."""
    fake = FakeAmd()
    (tmp_path / "a").write_bytes(fake.leaf.public_bytes(Encoding.DER))
    (tmp_path / "z.txt").write_bytes(b"# chain\n" + fake.ark.public_bytes(Encoding.PEM)
                                     + fake.ask.public_bytes(Encoding.PEM))
    (tmp_path / "list").write_bytes(fake.crl().public_bytes(Encoding.PEM))
    (tmp_path / "list.crl").write_bytes(fake.crl().public_bytes(Encoding.DER))
    (tmp_path / "junk").write_bytes(b"0 but no certificate")
    (tmp_path / "sub").mkdir()
    known = collateral_folder.load(tmp_path)
    assert (3, 2, []) == (len(known.certificates), len(known.crls), known.problems)
    assert None is not _verify(fake, fake.report(), collateral=known).revocation


def test_an_unreadable_certificate_is_told_when_one_is_missing(tmp_path: Path) -> None:
    """A damaged file among the collateral is named when a certificate is not found."""
    fake = FakeAmd()
    (tmp_path / "vcek.der").write_bytes(fake.leaf.public_bytes(Encoding.DER)[:-1])
    with pytest.raises(UncheckedEvidenceError, match=r"vcek\.der"):
        _verify(fake, fake.report(), collateral=collateral_folder.load(tmp_path))


@pytest.mark.parametrize("damage", [lambda data: data[:-40], lambda data: data[2400:], lambda data: b"", None])
def test_a_damaged_copy_of_what_is_shipped_is_named(damage: Callable[[bytes], bytes] | None, tmp_path: Path,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut, another chain, empty or absent: a fault of the installation, and no verdict about the evidence."""
    place = tmp_path / "attestation/trust"
    shutil.copytree(Path(amd.__file__).parent, place)
    broken = place / "amd_milan.pem"
    broken.unlink() if damage is None else broken.write_bytes(damage(broken.read_bytes()))
    monkeypatch.setattr(packaged, "ROOT", tmp_path)
    with pytest.raises(DamagedError, match=r"amd_milan\.pem is damaged"):
        amd.shipped.__wrapped__()


@pytest.mark.parametrize(("family", "model", "line", "product"), [
    (0x19, 0x01, "Milan", "Milan"), (0x19, 0x11, "Genoa", "Genoa"), (0x19, 0xA0, "Siena", "Genoa"),
    (0x1A, 0x02, "Turin", "Turin"), (0x1A, 0x11, "Turin", "Turin"), (0x1A, 0x50, "Venice", "Venice"),
    (0x1A, 0xC0, "Venice", "Venice"), (0x17, 0x31, None, None), (0x1A, 0x60, None, None), (0x1A, 0xB0, None, None)])
def test_processors_are_known_by_their_cpuid(family: int, model: int, line: str | None, product: str | None) -> None:
    """Each line has the keys of its own, but for Siena; others are not guessed."""
    assert (line, product) == (amd.line_of(family, model), amd.product_of(family, model))
