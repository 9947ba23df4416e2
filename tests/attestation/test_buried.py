"""Evidence inside of what is not recognised: the advice is run in a shell, and what it cuts out is the evidence."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from appliance.attestation.judge import buried
from appliance.cli.main import main
from tests.support import envelopes, fake_tpm
from tests.support.fake_amd import FakeAmd
from tests.support.fake_intel import FakeIntel
from tests.support.vectors import need

SNP, TDX, TPM = FakeAmd().report(), FakeIntel().quote(), fake_tpm.quote()
PIECES = {"snp": SNP, "tdx": TDX, "tpm": TPM, "azure": envelopes.azure(2, "ak").rstrip(b"\0")}


def _url(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def _jwt(data: bytes) -> bytes:
    claims = json.dumps({"quote": base64.b64encode(data).decode()}).encode()
    return _url(b'{"alg":"none"}') + b"." + _url(claims) + b".x"


FORMS: dict[str, Callable[[bytes], bytes]] = {
    "protobuf": lambda data: b"".join((
        b"\x0a\x04host\x12", bytes((len(data) & 0x7F | 0x80, len(data) >> 7)), data, b"\x1a\x01x")),
    "hex": lambda data: data.hex().encode(),
    "hex with 0x, upper case": lambda data: b"quote: 0x" + data.hex().upper().encode() + b"\n",
    "base64": base64.b64encode,
    "base64 in lines": base64.encodebytes,
    "base64url": _url,
    "json": lambda data: json.dumps({"a": {"quote": base64.b64encode(data).decode()}, "n": 1.5}).encode(),
    "json, escaped lines": lambda data: json.dumps([base64.encodebytes(data).decode()]).encode(),
    "json in base64": lambda data: base64.b64encode(json.dumps({"report": data.hex()}).encode()),
    "token": _jwt,
    "text": lambda data: b"report follows\n\n" + base64.encodebytes(data) + b"\n-- end\n",
}


def _run(capsys: pytest.CaptureFixture[str], file: Path) -> tuple[int, dict[str, Any]]:
    code = main(["evidence", str(file), "--json"])
    return code, json.loads(capsys.readouterr().out)[0]


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("form", FORMS)
def test_the_advice_cuts_it_out(capsys: pytest.CaptureFixture[str], tmp_path: Path, form: str, piece: str) -> None:
    """In bytes, hex, base64 of both alphabets, lines, JSON, protobuf and tokens: as it stands, in a shell."""
    data = PIECES[piece]
    file = tmp_path / "what it's in"
    file.write_bytes(FORMS[form](data))
    code, outcome = _run(capsys, file)
    assert (2, "cannot tell", "evidence-unknown") == (code, outcome["verdict"], outcome["code"]), outcome
    assert f"of {len(data)} bytes at byte" in outcome["reason"]
    command = outcome["hint"].removeprefix("cut it out and examine it: ").split("; or: ")[0]
    subprocess.run(["bash", "-euo", "pipefail", "-c", command], cwd=tmp_path, check=False)
    assert data == (tmp_path / "evidence.bin").read_bytes()


def test_several_pieces_are_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A TPM quote and a report in one JSON: each with its own command."""
    file = tmp_path / "both.json"
    file.write_text(json.dumps({"vtpm": TPM.hex(), "tee": base64.b64encode(SNP).decode(), "again": TPM.hex()}))
    _, outcome = _run(capsys, file)
    assert {(len(SNP)), len(TPM)} == {len(each.data) for each in buried.find(file.read_bytes())}
    assert 1 == outcome["hint"].count("; or: ")


def test_an_envelope_of_another_version_is_cut_open(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A member that is not known, and tokens that are refused by name: the report in them is found."""
    for value in ({**envelopes.tsm(), "extra": 1}, {"eat_profile": "x", "submods": base64.b64encode(SNP).decode()}):
        file = tmp_path / "envelope.json"
        file.write_text(json.dumps(value))
        _, outcome = _run(capsys, file)
        assert outcome["code"].startswith("envelope-")
        assert "in it lies: AMD SEV-SNP attestation report of 1184 bytes" in outcome["reason"]


def test_a_certificate_of_another_kind_may_hold_a_quote(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A real quote in PEM under any label, as older libraries' certificates carry it."""
    quote = need("tdx/quote_v4.bin").read_bytes()
    file = tmp_path / "cert.txt"
    file.write_bytes(b"-----BEGIN THING-----\n" + base64.encodebytes(b"\x30\x82" + quote) + b"-----END THING-----\n")
    _, outcome = _run(capsys, file)
    assert "Intel TDX quote of" in outcome["reason"]


@pytest.mark.parametrize("data", [
    b"", b"hello", b"\x04\x00\x02\x00\x81\x00\x00\x00" * 4000, b"HCLA" * 9000, b"\xffTCG\x80\x18" * 5000,
    b"\x03\x00\x00\x00" * 40000, b"A" * 500_000, b"0x" + b"0" * 99_999, b"\n" * 500_000, b"-+" * 99_999,
    (b"A" * 200 + b".") * 5000, json.dumps("A" * 189).encode()], ids=range(12))
def test_what_holds_none_is_searched_soon(data: bytes) -> None:
    """Beginnings without an end, one long run, many runs: nothing is found, in little time."""
    assert [] == buried.find(data)


def test_nested_texts_end_somewhere() -> None:
    """Base64 in base64 is opened three times, not for ever."""
    data = SNP
    for depth in range(1, 6):
        data = base64.b64encode(data)
        assert (depth <= buried.MAX_DEPTH) == bool(buried.find(data)), depth


def test_no_kind_of_vector_is_said_to_lie_in_itself(capsys: pytest.CaptureFixture[str]) -> None:
    """What is recognised is judged, and not searched."""
    _, outcome = _run(capsys, need("snp/genoa_report.bin"))
    assert "in it lies" not in outcome["reason"]
