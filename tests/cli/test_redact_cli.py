"""`appliance redact`: a policy's redaction, or detectors, tried on a text."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from appliance.cli.main import main
from appliance.policy import unenforced
from tests.support.policies import in_schema, valid, with_lines

TEXT = "Grüße,\nmail bob@example.com or call +49 30 901820.\nStaff 1234.\n"


@pytest.fixture
def text(tmp_path: Path) -> str:
    """A file with an address, a telephone's number and a number of the house."""
    (tmp_path / "text").write_text(TEXT)
    return str(tmp_path / "text")


def test_all_detectors_by_default(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The text is printed as it would leave."""
    assert 0 == main(["redact", text])
    assert TEXT.replace("bob@example.com", "[email]").replace("+49 30 901820", "[phone]") == capsys.readouterr().out


def test_matches_say_where_they_stand(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In characters of the text, which is not ASCII before them; the others are left."""
    assert 0 == main(["redact", text, "--detectors", "phone,iban", "--json"])
    found = json.loads(capsys.readouterr().out)
    start = TEXT.index("+49")
    assert [{"detector": "phone", "start": start, "end": start + 13, "line": 2, "column": 30}] == found["matches"]
    assert "bob@example.com" in found["text"]


def test_a_policy_with_detectors_and_patterns(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Patterns see what detectors leave, and their matches have places in the text that was given."""
    lines = 'redaction {\n detectors = ["email"]\n pattern "one" { regex = "\\\\[email\\\\]|Staff \\\\d{4}" }\n}'
    (tmp_path / "policy.hcl").write_text(in_schema(2, with_lines("privacy", lines)))
    assert 0 == main(["redact", text, "--policy", str(tmp_path / "policy.hcl"), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert TEXT.replace("bob@example.com", "[redacted]").replace("Staff 1234", "[redacted]") == found["text"]
    assert [("email", "bob@example.com"), ("one", "bob@example.com"), ("one", "Staff 1234")] == [
        (each["detector"], TEXT[each["start"]:each["end"]]) for each in found["matches"]]


def test_standard_input_and_errors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                                   capsys: pytest.CaptureFixture[str]) -> None:
    """`-` is standard input; a missing file, other bytes than UTF-8 and unknown names are exit code 2."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a@b.com")))
    assert (0, "[email]") == (main(["redact", "-"]), capsys.readouterr().out)
    (tmp_path / "noise").write_bytes(b"a\xff")
    for words in (["absent"], [str(tmp_path / "noise")]):
        assert 2 == main(["redact", *words])
    assert "byte 1 is not UTF-8" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["redact", "-", "--detectors", "names"])
    assert 2 == ended.value.code
    assert "'names' is not a detector" in capsys.readouterr().err


def test_new_names_are_of_schema_2(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Schema 1 keeps its six names, and does not carry them out: a note says so."""
    new, old = (with_lines("privacy", f'redaction {{ detectors = ["{name}"] }}') for name in ("uk-nhs", "email"))
    policy = valid(in_schema(2, new))
    assert (("uk-nhs",), []) == (policy.privacy.redaction.detectors, unenforced(policy))
    (tmp_path / "policy.hcl").write_text(in_schema(1, new))
    assert 1 == main(["check", str(tmp_path / "policy.hcl")])
    assert "fix: write schema = 2, or another value" in capsys.readouterr().out
    (tmp_path / "policy.hcl").write_text(in_schema(1, old))
    assert 0 == main(["redact", text, "--policy", str(tmp_path / "policy.hcl")])
    told = capsys.readouterr()
    assert TEXT == told.out
    assert "not enforced under schema 1" in told.err
