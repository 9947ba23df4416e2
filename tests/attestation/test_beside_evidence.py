"""Files beside evidence, as machines write them: padded, bare, in other spellings, unreadable, or of another guest."""

from __future__ import annotations

import base64
import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from pydantic import ValidationError

from appliance.attestation.binding import Build
from appliance.attestation.envelopes import registry
from appliance.attestation.judge.examine import examine
from appliance.attestation.judge.material import Material
from appliance.attestation.tpm.judging import verify as tpm_verify
from appliance.cli.main import main
from appliance.codec import der
from tests.support import envelopes, fake_tpm
from tests.support.vectors import need

JUNE, NV_BYTES = "2026-06-10", 4096
AZURE = ("q.msg", "q.sig", "q.pcrs")
Outcome = tuple[int, dict[str, Any]]


def _run(capsys: pytest.CaptureFixture[str], *words: str) -> Outcome:
    code = main(["evidence", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)[0]


def _copy(source: str, folder: Path, *names: str) -> Path:
    for name in names:
        shutil.copyfile(need(f"{source}/{name}"), folder / name)
    return folder


def _pem(data: bytes) -> bytes:
    """PEM around any bytes."""
    return b"-----BEGIN CERTIFICATE-----\n" + base64.encodebytes(data) + b"-----END CERTIFICATE-----\n"


def _padded_ak(folder: Path) -> bytes:
    return _copy("azure/padded_ak", folder, *AZURE, "azure_tpm_intermediate_03.pem",
                 "azure_tpm_root_2023.pem") and need("azure/padded_ak/akcert.der").read_bytes()


@pytest.mark.parametrize(("name", "form"), [
    ("ak.der", bytes), ("ak.bin", bytes), ("ak.pem", _pem), ("ak.txt", lambda data: data.hex().encode()),
    ("ak.cer", lambda data: data.rstrip(b"\0"))])
def test_a_certificate_of_an_nv_index_is_read(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str,
                                              form: Any) -> None:
    """Zeros up to the size of the index follow it, in DER, PEM and hex; it is the same certificate without them."""
    (tmp_path / name).write_bytes(form(_padded_ak(tmp_path)))
    code, outcome = _run(capsys, str(tmp_path / "q.msg"), "--at", JUNE)
    assert (0, "genuine") == (code, outcome["verdict"]), outcome
    assert [] == [each for each in outcome["warnings"] if "REFUSED" in each]


@pytest.mark.parametrize("form", [bytes, _pem])
def test_a_padded_certificate_can_be_named(capsys: pytest.CaptureFixture[str], tmp_path: Path, form: Any) -> None:
    """`--ak` takes the certificate as the virtual TPM gives it."""
    ak = tmp_path / "named"
    ak.write_bytes(form(_padded_ak(tmp_path)))
    assert 0 == _run(capsys, str(tmp_path / "q.msg"), "--ak", str(ak), "--at", JUNE)[0]


@pytest.mark.parametrize("tail", [b"\1", bytes(8) + b"\1", b"0"])
@pytest.mark.parametrize("form", [bytes, _pem])
def test_only_zeros_are_cut(capsys: pytest.CaptureFixture[str], tmp_path: Path, form: Any, tail: bytes) -> None:
    """Anything else behind a certificate leaves it unread: nothing can be told, and the file is named."""
    (tmp_path / "behind.der").write_bytes(form(_padded_ak(tmp_path).rstrip(b"\0") + tail))
    code, outcome = _run(capsys, str(tmp_path / "q.msg"), "--at", JUNE)
    assert (2, "cannot tell") == (code, outcome["verdict"])
    assert "behind.der" in outcome["reason"]


def test_unpadding_never_cuts_an_element() -> None:
    """A certificate that ends in zeros is whole, and what is cut off or no sequence stays as it is."""
    element = b"\x30\x82\x01\x00" + bytes(256)
    assert [element, element, element[:-1], b"\x30", b"", b"\x04\x01\x00\x00"] == [
        der.unpadded(each) for each in (element, element + bytes(9), element[:-1], b"\x30", b"", b"\x04\x01\x00\x00")]


@pytest.mark.parametrize(("name", "data"), [
    ("ak.pub", b"\x30\x03junk"), ("ak.pub", b"-----BEGIN PUBLIC KEY-----\n"), ("ak.pub", b"\x00\x01"),
    ("q.pcrs", b"junk")])
def test_a_file_that_cannot_be_read_says_nothing_against_the_quote(
        capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, data: bytes) -> None:
    """Nobody signed it: nothing can be told, and the file is named. A key is not needed beside its certificate."""
    certificate = _padded_ak(tmp_path)
    (tmp_path / name).write_bytes(data)
    if name == "q.pcrs":
        (tmp_path / "ak.der").write_bytes(certificate)
    code, outcome = _run(capsys, str(tmp_path / "q.msg"), "--at", JUNE)
    assert (2, "cannot tell", "file-unreadable") == (code, outcome["verdict"], outcome["code"])
    assert name in outcome["reason"]
    assert outcome["hint"]
    if name == "ak.pub":
        (tmp_path / "ak.der").write_bytes(certificate)
        code, outcome = _run(capsys, str(tmp_path / "q.msg"), "--at", JUNE)
        assert (0, 1) == (code, sum("KEY PASSED OVER: ak.pub" in each for each in outcome["warnings"]))


def test_a_named_key_that_cannot_be_read_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Junk, and a file that is not there."""
    _padded_ak(tmp_path)
    (tmp_path / "mine").write_bytes(b"junk")
    for name in ("mine", "absent"):
        code, outcome = _run(capsys, str(tmp_path / "q.msg"), "--ak", str(tmp_path / name))
        assert (2, "file-unreadable", True) == (code, outcome["code"], f"{name} cannot be read" in outcome["reason"])


def test_an_unreadable_certificate_refutes_no_report(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A cut VCEK beside a genuine report: the VCEK is absent, and the file is named."""
    shutil.copyfile(need("snp/genoa_report.bin"), tmp_path / "report.bin")
    certificate = x509.load_pem_x509_certificate(need("snp/genoa_vcek.pem").read_bytes())
    (tmp_path / "vcek.der").write_bytes(certificate.public_bytes(Encoding.DER)[:-1])
    code, outcome = _run(capsys, str(tmp_path / "report.bin"), "--at", JUNE)
    assert (2, "cannot tell", True) == (code, outcome["verdict"], "vcek.der" in outcome["reason"]), outcome


def test_a_bare_public_area_is_read() -> None:
    """TPMT_PUBLIC of a Google VM: modulus, exponent and attributes are those of its bytes."""
    data = need("tpm/tpmt_public_ak.pub").read_bytes()
    key = tpm_verify.load_key(data)
    numbers = key.key.public_numbers()  # type: ignore[union-attr]
    assert (int.from_bytes(data[-256:], "big"), 65537) == (numbers.n, numbers.e)  # type: ignore[union-attr]
    assert key.area is not None
    assert key.area.attests


@pytest.mark.parametrize("kind", ["rsa", "ecc"])
def test_a_bare_public_area_is_the_key_with_its_length(kind: str) -> None:
    """The same key, attributes and name, in both forms."""
    whole = fake_tpm.public(kind)
    assert tpm_verify.load_key(whole).area.name == tpm_verify.load_key(whole[2:]).area.name  # type: ignore[union-attr]
    assert tpm_verify.load_key(whole).spki() == tpm_verify.load_key(whole[2:]).spki()


def test_a_quote_is_verified_by_a_bare_public_area(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The one that signed is taken; another machine's did not sign, and is no bad file."""
    (tmp_path / "q.msg").write_bytes(fake_tpm.quote())
    (tmp_path / "q.sig").write_bytes(fake_tpm.sign(fake_tpm.quote()))
    (tmp_path / "mine").write_bytes(fake_tpm.public()[2:])
    assert 0 == _run(capsys, str(tmp_path / "q.msg"), "--ak", str(tmp_path / "mine"))[0]
    code, outcome = _run(capsys, str(tmp_path / "q.msg"), "--ak", str(need("tpm/tpmt_public_ak.pub")))
    assert (1, "tpm-signature") == (code, outcome["code"])


def _spellings(data: bytes) -> dict[str, str]:
    return {"standard": base64.b64encode(data).decode(), "url": base64.urlsafe_b64encode(data).decode(),
            "bare": base64.urlsafe_b64encode(data).decode().rstrip("=")}


@pytest.mark.parametrize("spelling", ["standard", "url", "bare"])
@pytest.mark.parametrize("extra", [0, 1, 2])
def test_either_alphabet_is_read(spelling: str, extra: int) -> None:
    """Whatever the writer's alphabet, and however many bytes the last group has."""
    data = b"\xfb\xff\xbe" * 40 + b"a" * extra
    found = registry.read(json.dumps({"provider": "tdx_guest", "outblob": _spellings(data)[spelling]}).encode())[0]
    assert data == found.evidence


@pytest.mark.parametrize("text", [
    "-_+/", "+_==", "+/8", "-_9", "-_8==", "+/9=", "AB", "QQ=", "Q", " QQ==", "QQ==\n", "-_8 ", "=", "QQ==QQ=="])
def test_each_alphabet_has_one_spelling(text: str) -> None:
    """Alphabets that are mixed, unused bits, and padding that is cut or too much are refused, by the member's name."""
    outcome = _examined({"provider": "tdx_guest", "outblob": text})
    assert "envelope-malformed" == outcome["code"]
    assert "outblob" in outcome["reason"]


def _examined(value: dict[str, Any]) -> dict[str, Any]:
    return examine(Material(json.dumps(value).encode(), Path("x")), at=datetime(2026, 6, 10, tzinfo=UTC)).as_json()


def test_the_base64url_report_is_the_one_with_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    """Both files of the same answer have the same claims."""
    answer, plain = (_run(capsys, str(need(f"snp/{name}")), "--at", JUNE)[1]["claims"]["claims"]
                     for name in ("tsm_base64url.json", "genoa_report_with_pem_table.bin"))
    assert plain == answer


TDX_FOLDER = (*AZURE, "hcl.bin", "c.json")


def test_azure_tdx_is_joined_from_a_folder_as_from_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """HCL report, TDX quote and TPM quote side by side prove what Trustee's JSON of the three proves."""
    folder = _copy("azure/tdx_folder", tmp_path, *TDX_FOLDER, "tdquote.bin")
    parts = {name: (folder / name).read_bytes() for name in (*TDX_FOLDER, "tdquote.bin")}
    values = [parts["q.pcrs"][at:at + 32].hex() for at in _digests()]
    (folder / "together.json").write_text(json.dumps({
        "version": 1, "hcl_report": envelopes.b64url(parts["hcl.bin"]), "td_quote": envelopes.b64url(
            parts["tdquote.bin"]),
        "tpm_quote": {"message": parts["q.msg"].hex(), "signature": parts["q.sig"].hex(), "pcrs": values}}))
    one = _run(capsys, str(folder / "together.json"), "--at", JUNE)
    (folder / "together.json").unlink()
    beside = _run(capsys, str(folder), "--at", JUNE)
    assert (0, 0) == (one[0], beside[0]), (one, beside)
    assert set(one[1]["claims"]) - {"envelope, which nothing signs"} == set(beside[1]["claims"])
    assert one[1]["claims"]["claims"] == beside[1]["claims"]["claims"]
    assert [] == [each for each in beside[1]["warnings"] if "HOST TRUSTED" in each]


def _digests() -> list[int]:
    """Where the 24 values are in a file of tpm2-tools: three lists of eight, in rooms of 66 bytes."""
    start = 4 + 16 * 8 + 4
    return [start + number // 8 * (4 + 8 * 66) + 4 + number % 8 * 66 + 2 for number in range(24)]


@pytest.mark.parametrize("name", ["q.msg", "hcl.bin"])
def test_without_its_td_quote_an_azure_report_proves_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path,
                                                             name: str) -> None:
    """Absent: the advice is to put it there. Another guest's: it is named, and refutes nothing."""
    folder = _copy("azure/tdx_folder", tmp_path, *TDX_FOLDER)
    code, outcome = _run(capsys, str(folder / name), "--at", JUNE)
    assert (2, "azure-td-quote", True) == (code, outcome["code"], "same folder" in outcome["hint"]), outcome
    shutil.copyfile(need("tdx/quote_v4.bin"), folder / "stray.bin")
    code, outcome = _run(capsys, str(folder / name), "--at", JUNE)
    assert (2, True) == (code, "stray.bin" in outcome["reason"])
    shutil.copyfile(need("azure/tdx_folder/tdquote.bin"), folder / "zz.bin")
    assert 0 == _run(capsys, str(folder / name), "--at", JUNE)[0]


@pytest.mark.parametrize("name", ["q.msg", "hcl.bin"])
def test_an_altered_azure_folder_is_never_genuine(capsys: pytest.CaptureFixture[str], tmp_path: Path,
                                                     name: str) -> None:
    """A TDX quote whose signature fails, and runtime data that no quote binds."""
    folder = _copy("azure/tdx_folder", tmp_path, *TDX_FOLDER, "tdquote.bin")
    quote = bytearray((folder / "tdquote.bin").read_bytes())
    quote[200] ^= 1
    (folder / "tdquote.bin").write_bytes(quote)
    code, outcome = _run(capsys, str(folder / name), "--at", JUNE)
    assert (1, "tdx-signature") == (code, outcome["code"])
    _copy("azure/tdx_folder", tmp_path, "tdquote.bin")
    report = (folder / "hcl.bin").read_bytes()
    (folder / "hcl.bin").write_bytes(report.replace(b'"HCLEkPub"', b'"HCLEkPuc"'))
    assert 2 == _run(capsys, str(folder / name), "--at", JUNE)[0]


def test_the_json_of_evidence_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    """The reference's table has the members that are printed, in their order, for every verdict."""
    text = (Path(__file__).parents[2] / "docs" / "reference" / "evidence.md").read_text()
    told = [line.split("`")[1] for line in text.split("## As JSON", 1)[1].split("\n## ", 1)[0].splitlines()
            if line.startswith("| `")]
    for words in (("snp/genoa_report.bin",), ("README.md",), ("tpm/quote.msg",)):
        _, outcome = _run(capsys, *(str(need(word)) for word in words))
        assert told == list(outcome)


@pytest.mark.parametrize(("version", "good"), [
    ("0.1.0", True), ("1.0.0-rc.1+g12ab", True), ("9" * 64, True), ("", False), ("9" * 65, False), ("1.0 beta", False),
    ("1_0", False), ("1.0\n", False), ("١", False)])
def test_a_builds_version_is_of_the_form_that_is_documented(version: str, good: bool) -> None:
    """1 to 64 digits, ASCII letters, dots, pluses and hyphens."""
    text = (Path(__file__).parents[2] / "docs" / "formats" / "report-data.md").read_text()
    assert "`version` is 1 to 64 characters, each a digit, an ASCII\nletter, `.`, `+` or `-`." in text
    try:
        made = Build(version=version).version == version
    except ValidationError:
        made = False
    assert good == made
