"""The signed list of machines: only the authority's word, for this deployment, no older than the policy accepts; and
the commands that make one."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.attestation.case.machine import KINDS, Custody, MachineId
from appliance.cli.main import main
from appliance.errors import PolicyError
from appliance.policy import Policy
from appliance.policy.explaining.checking import check
from appliance.signed import machines
from tests.goldens import make_machine_vectors
from tests.support import fake_tpm
from tests.support import machine_lists as lists
from tests.support.fake_amd import CHIP, TURIN_CHIP, FakeAmd
from tests.support.fake_intel import FakeIntel
from tests.support.policies import in_schema, valid, with_lines
from tests.support.tpm_maker import Maker
from tests.support.vectors import need

VECTORS = json.loads((Path(__file__).parents[2] / "docs/formats/machine-list-vectors.json").read_text())
AT = ["--at", "2026-06-01T00:00:00Z"]


def _policy(authority: str, name: str = "demo", version: int = 3) -> Policy:
    block = f'machines {{\n authority = "{authority}"\n list = "m.json"\n min_version = {version}\n }}'
    return valid(_text(block).replace('"demo"', f'"{name}"', 1))


def _text(demand: str) -> str:
    """A policy of schema 2 with a demand."""
    return in_schema(2, with_lines("tee", f"evidence {{\n {demand}\n }}"))


OURS = _policy(lists.PUBLIC)


def _listed(**changes: Any) -> dict[str, Any]:
    return {"appliance": "demo", "machines": [lists.entry("chip-id", CHIP)], "version": 3, **changes}


def test_the_vectors_are_those_of_their_maker() -> None:
    """Frozen: another file is another format."""
    assert make_machine_vectors.vectors() == VECTORS


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=lambda each: each["name"])
def test_vectors(vector: dict[str, Any]) -> None:
    """A list that holds has the signed bytes of the vector, verified by another implementation; each other one is
    refused by its code."""
    public = VECTORS["authority"]["public_key"]
    policy = _policy(f"ed25519:{public}", VECTORS["appliance"], VECTORS["min_version"])
    data = vector["file"].encode()
    if vector["expect"] != "success":
        with pytest.raises(PolicyError) as caught:
            machines.parse(data, policy)
        assert vector["expect"] == caught.value.code
        return
    found, value = machines.parse(data, policy), json.loads(data)
    assert {(each["kind"], each["id"]): each["custody"] for each in value["list"]["machines"]} == {
        (each.kind, each.value.hex()): custody.note for each, custody in found.machines.items()}
    assert vector["message"].encode() == machines.message(value["list"])
    Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(
        bytes.fromhex(value["signature"].removeprefix("ed25519:")), vector["message"].encode())
    private = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(VECTORS["authority"]["private_key"]))
    assert value == json.loads(machines.sign(value["list"], private))


def test_every_flipped_byte_is_refused_or_says_the_same() -> None:
    """No byte of the file can change what it says."""
    data = machines.sign(_listed(), lists.AUTHORITY)
    expected, accepted = machines.parse(data, OURS), 0
    for at in range(len(data)):
        try:
            found = machines.parse(data[:at] + bytes((data[at] ^ 1,)) + data[at + 1:], OURS)
        except PolicyError:
            continue
        assert expected == found
        accepted += 1
    assert accepted <= 1  # the line feed at the end, as another white space


TEXT = st.text(st.characters(min_codepoint=0x20, exclude_categories=("Cc", "Cs")), min_size=1, max_size=200)
TIMES = st.none() | st.datetimes().map(lambda time: machines.written(time.replace(microsecond=0)))
ENTRIES = st.sampled_from(sorted(KINDS)).flatmap(lambda kind: st.fixed_dictionaries({
    "kind": st.just(kind), "custody": TEXT, "not_after": TIMES,
    "id": st.binary(min_size=KINDS[kind], max_size=KINDS[kind]).filter(any).map(bytes.hex)}))


@settings(max_examples=60, deadline=None)
@given(st.lists(ENTRIES, max_size=6, unique_by=lambda each: (each["kind"], each["id"])),
       st.integers(3, 2**53 - 1))
def test_what_is_signed_is_read_again(entries: list[dict[str, Any]], version: int) -> None:
    """Any list in form: signed, read, and the same; in another order it is refused."""
    entries.sort(key=lambda each: (each["kind"], each["id"]))
    found = machines.parse(machines.sign(_listed(machines=entries, version=version), lists.AUTHORITY), OURS)
    assert version == found.version
    assert [(each["kind"], each["id"], each["custody"], each["not_after"]) for each in entries] == [
        (each.kind, each.value.hex(), custody.note,
         None if custody.not_after is None else machines.written(custody.not_after))
        for each, custody in found.machines.items()]
    if len(entries) > 1:
        with pytest.raises(PolicyError):
            machines.sign(_listed(machines=entries[::-1], version=version), lists.AUTHORITY)


PLAIN = st.none() | st.booleans() | st.integers(-2**53 + 1, 2**53 - 1) | st.text(max_size=8) | st.sampled_from(
    [CHIP.hex(), "chip-id", "2027-01-01T00:00:00Z"])
KEYS = st.sampled_from(["appliance", "machines", "version", "kind", "id", "custody", "not_after"])
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner), max_leaves=12)


@settings(max_examples=200, deadline=None)
@given(VALUES)
def test_any_value_is_read_or_refused(value: Any) -> None:
    """Whatever an authority might sign: in form, or our error."""
    for read in (machines.check, lambda each: machines.parse(json.dumps(each).encode(), OURS),
                 lambda each: machines.shown(json.dumps(each).encode())):
        with contextlib.suppress(PolicyError):
            read(value)


@pytest.mark.parametrize("data", [
    b"", b"{}", b"[]", b"[" * 100_000, b"\xff", bytes((4 << 20) + 2), b'{"signature":1}', b'{"format":1,"list":{},'
    b'"signature":""}', b'{"format":"appliance/machines/v1","list":[],"signature":"ed25519:00"}',
    b'{"format":"appliance/tenants/v1","list":{},"signature":""}'])
def test_other_bytes_are_refused(data: bytes) -> None:
    """Whatever it is, it ends in our error."""
    with pytest.raises(PolicyError) as caught:
        machines.parse(data, OURS)
    assert "machines-malformed" == caught.value.code
    with pytest.raises(PolicyError):
        machines.shown(data)


def test_a_policy_that_demands_none_takes_none() -> None:
    """Nothing in it says whose list it is."""
    with pytest.raises(PolicyError) as caught:
        machines.parse(machines.sign(_listed(), lists.AUTHORITY), valid(in_schema(2)))
    assert "machines-unused" == caught.value.code


def test_the_block_is_of_schema_2() -> None:
    """Schema 1 refuses it by name; a list that no evidence can meet is a warning."""
    first = check(with_lines("tee", f"evidence {{\n {lists.DEMAND}\n }}"))
    [found] = [each for each in first.diagnostics if each.severity == "error"]
    assert "machines is a field of schema 2" == found.summary
    assert "simulated evidence names no machine" in "".join(
        each.summary for each in check(_text(lists.DEMAND)).diagnostics)
    vlek = _text(f'sev_snp {{ signing_keys = ["vlek"] }}\n {lists.DEMAND}')
    told = check(vlek.replace('["simulated"]', '["sev-snp"]')).diagnostics
    assert "VLEK signed names no machine" in "".join(each.summary for each in told)


def test_adding_keeps_the_order_and_raises_the_version() -> None:
    """A new name goes to its place, one that is there gets its new note, and the same again changes nothing."""
    first, second = MachineId("ppid", b"\1" * 16), MachineId("chip-id", CHIP)
    begun: dict[str, Any] = {"appliance": "demo", "machines": [], "version": 0}
    one = machines.added(begun, [first], Custody("a"))
    two = machines.added(one, [second, first], Custody("b"))
    assert (1, 2) == (one["version"], two["version"])
    assert [("chip-id", "b"), ("ppid", "b")] == [(each["kind"], each["custody"]) for each in two["machines"]]
    assert two == machines.added(two, [first], Custody("b"))
    with pytest.raises(PolicyError, match="control character"):
        machines.added(two, [first], Custody("b\n"))


def _evidence(folder: Path, product: str = "Genoa", **fields: Any) -> list[str]:
    """A report of our own hierarchy with its certificates, and the words that name both."""
    amd = FakeAmd(product, vlek=fields.pop("vlek", False))
    (folder / "report.bin").write_bytes(amd.report(**fields))
    for name, each in (("leaf", amd.leaf), ("ask", amd.ask), ("ark", amd.ark)):
        (folder / f"{name}.pem").write_bytes(each.public_bytes(Encoding.PEM))
    return ["--evidence", str(folder / "report.bin"), "--unsafe-root", str(folder / "ark.pem"), *AT]


def _add(folder: Path, *words: str) -> int:
    return main(["machines", "add", str(folder / "list.json"), "--custody", "rack 1", *words])


def _run(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """A command that succeeds, as JSON."""
    assert 0 == main([*words, "--json"]), capsys.readouterr().err
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_list_from_evidence_to_a_signature(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`add` makes the list out of a report, a quote and an endorsement certificate; `sign` and `show` do the rest."""
    intel = FakeIntel()
    (tmp_path / "tdx").mkdir()
    (tmp_path / "tdx/quote.bin").write_bytes(intel.quote())
    (tmp_path / "tdx/collateral.json").write_text(json.dumps(intel.document()))
    (tmp_path / "tdx/root.pem").write_bytes(intel.root.public_bytes(Encoding.PEM))
    key = fake_tpm.ec_key("an endorsement key")
    (tmp_path / "ek.der").write_bytes(Maker().certify(key.public_key()).public_bytes(Encoding.DER))
    (tmp_path / "ek.pem").write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    assert 0 == _add(tmp_path, "--appliance", "hard", *_evidence(tmp_path))
    assert "added: chip-id 000102" in capsys.readouterr().out
    words = ["machines", "add", str(tmp_path / "list.json"), "--custody", "cage 2", "--not-after", "2027-01-01"]
    assert [{"kind": "ppid", "id": "01" * 16}] == _run(
        [*words, "--evidence", str(tmp_path / "tdx/quote.bin"), "--unsafe-root", str(tmp_path / "tdx/root.pem"), *AT],
        capsys)["added"]
    [certified] = _run([*words, "--ek", str(tmp_path / "ek.der")], capsys)["added"]
    assert (4 - 1, [certified]) == (lambda found: (found["version"], found["added"]))(
        _run([*words, "--ek", str(tmp_path / "ek.pem")], capsys))  # the same key: nothing changes
    signed = tmp_path / "machines.json"
    assert {"file": str(signed), "version": 3, "machines": 3} == _run(
        ["machines", "sign", str(tmp_path / "list.json"), "--key", str(lists.key_file(tmp_path)), "-o", str(signed)],
        capsys)
    (tmp_path / "policy.hcl").write_text(_text(lists.DEMAND).replace(
        '"demo"', '"hard"', 1))
    shown = _run(["machines", "show", str(signed), "--policy", str(tmp_path / "policy.hcl")], capsys)
    assert (True, True, ["chip-id", "ek-sha256", "ppid"]) == (
        shown["signed"], shown["accepted"], [each["kind"] for each in shown["machines"]])
    assert 0 == main(["machines", "show", str(signed)])
    text = capsys.readouterr().out
    assert text.startswith("version 3, 3 machines, for hard, signed; --policy checks by whom\n")
    assert f"ppid {'01' * 16}, until 2027-01-01T00:00:00Z: cage 2" in text
    assert 0 == main(["machines", "show", str(tmp_path / "list.json")])
    assert "not signed yet" in capsys.readouterr().out
    assert 0 == main(["machines", "sign", str(tmp_path / "list.json"), "--key", str(tmp_path / "authority.pem")])
    assert signed.read_text() == capsys.readouterr().out


@pytest.mark.parametrize(("fields", "name"), [
    ({}, CHIP), ({"product": "Turin", "version": 5}, TURIN_CHIP)], ids=["64 bytes", "8 bytes and zeros"])
def test_a_chip_is_named_as_its_report_does(tmp_path: Path, fields: dict[str, Any], name: bytes,
                                            capsys: pytest.CaptureFixture[str]) -> None:
    """Turin's names are shorter, and zeros follow."""
    found = _run(["machines", "add", str(tmp_path / "list.json"), "--custody", "x", "--appliance", "hard",
                  *_evidence(tmp_path, **fields)], capsys)
    assert [{"kind": "chip-id", "id": name.hex()}] == found["added"]


def _refused(folder: Path, code: str, says: str, capsys: pytest.CaptureFixture[str], *words: str) -> None:
    before = (folder / "list.json").read_bytes() if (folder / "list.json").exists() else None
    assert 2 == _add(folder, *words)
    told = capsys.readouterr().err
    assert f"error[{code}]" in told
    assert says in told
    assert before == ((folder / "list.json").read_bytes() if (folder / "list.json").exists() else None)


def test_what_names_no_machine_is_not_added(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A masked chip, a cloud's key, a forgery, an absent file, none at all: told apart, and the list stays."""
    new = ("--appliance", "hard")
    _refused(tmp_path, "machines-unnamed", "the host masks CHIP_ID", capsys, *new,
             *_evidence(tmp_path, chip_id=bytes(64)))
    _refused(tmp_path, "machines-unnamed", "a VLEK signed the report", capsys, *new,
             *_evidence(tmp_path, "Milan", vlek=True))
    words = _evidence(tmp_path)
    report = bytearray((tmp_path / "report.bin").read_bytes())
    report[0x90] ^= 1
    (tmp_path / "report.bin").write_bytes(report)
    _refused(tmp_path, "report-signature", "not genuine", capsys, *new, *words)
    _refused(tmp_path, "file-unreadable", "cannot be read", capsys, *new, "--evidence", str(tmp_path / "none"))
    _refused(tmp_path, "machines-unnamed", "there is no machine to add", capsys, *new)
    _refused(tmp_path, "machines-other", "nothing names its deployment", capsys, *_evidence(tmp_path))
    maker, key = Maker(), fake_tpm.ec_key("a key").public_key()
    for name, data, code in (
            ("ak.pub", fake_tpm.public("ecc"), "tpm-ek-certificate"),
            ("ca.der", maker.authority.public_bytes(Encoding.DER), "tpm-ek-certificate"),
            ("signs.pem", maker.certify(key, encrypts=False).public_bytes(Encoding.PEM), "tpm-ek-certificate")):
        (tmp_path / name).write_bytes(data)
        _refused(tmp_path, code, "it is" if "ak" not in name else "an attestation key", capsys, *new, "--ek",
                 str(tmp_path / name))
    (tmp_path / "noise").write_bytes(b"\0" * 40)
    _refused(tmp_path, "evidence-malformed", "endorsement key: neither", capsys, *new, "--ek", str(tmp_path / "noise"))


def test_a_signed_list_is_not_added_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its signature would not hold; another deployment's list, and one that is none, are named too."""
    lists.write(tmp_path, file="list.json")
    _refused(tmp_path, "machines-signed", "is signed", capsys, *_evidence(tmp_path))
    (tmp_path / "list.json").write_text(json.dumps({"appliance": "other", "machines": [], "version": 1}))
    _refused(tmp_path, "machines-other", "for other, not for hard", capsys, "--appliance", "hard", *_evidence(tmp_path))
    (tmp_path / "list.json").write_text("{")
    _refused(tmp_path, "machines-malformed", f"{tmp_path / 'list.json'}: machine list: not JSON", capsys,
             *_evidence(tmp_path))


def test_a_list_that_the_policy_does_not_accept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By another key, too old, of another deployment, not signed: each by its code, with the file's name."""
    path = tmp_path / "policy.hcl"
    path.write_text(_text(lists.DEMAND))
    for code, options in (("machines-signature", {"key": Ed25519PrivateKey.generate()}), ("machines-version", {
            "version": 2}), ("machines-other", {"name": "hard"})):
        lists.write(tmp_path, **{"name": "demo", **options})  # type: ignore[arg-type]
        assert 2 == main(["machines", "show", str(tmp_path / "machines.json"), "--policy", str(path)])
        assert f"error[{code}]: {tmp_path / 'machines.json'}: machine list: " in capsys.readouterr().err
    (tmp_path / "list.json").write_text(json.dumps(_listed()))
    assert 2 == main(["machines", "show", str(tmp_path / "list.json"), "--policy", str(path)])
    assert "machines-malformed" in capsys.readouterr().err
    assert 2 == main(["machines", "show", str(tmp_path / "none")])
    assert "machines-absent" in capsys.readouterr().err


@pytest.mark.parametrize(("report", "at"), [
    ("snp/genoa_v5_mit0b_report.bin", "2026-07-01"), ("snp/milan_report.bin", "2026-07-01"),
    ("snp/turin_attestation_report.bin", "2026-07-01"), ("tdx/quote_v4.bin", "2025-06-20T10:16:03Z")])
def test_real_evidence_names_its_machine(report: str, at: str, tmp_path: Path,
                                         capsys: pytest.CaptureFixture[str]) -> None:
    """Of real chips: the name in the list is the one in the report's bytes, or in the extension of the PCK."""
    path = need(report)
    [found] = _run(["machines", "add", str(tmp_path / "list.json"), "--custody", "a lab", "--appliance", "hard",
                    "--evidence", str(path), "--at", at], capsys)["added"]
    data = path.read_bytes()
    if report.startswith("snp"):
        assert {"kind": "chip-id", "id": data[0x1A0:0x1E0].hex()} == found
        return
    pck = x509.load_pem_x509_certificate(data[data.index(b"-----BEGIN"):])
    extension = pck.extensions.get_extension_for_oid(x509.ObjectIdentifier("1.2.840.113741.1.13.1")).value
    assert isinstance(extension, x509.UnrecognizedExtension)
    ppid = bytes.fromhex("060a2a864886f84d010d0101" "0410")  # its object identifier, then 16 octets
    at_ppid = extension.value.index(ppid) + len(ppid)
    assert {"kind": "ppid", "id": extension.value[at_ppid:at_ppid + 16].hex()} == found
