"""With --json, what a verb cannot do is machine readable as well."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from appliance.cli import main as cli
from appliance.cli.main import VERBS, main
from tests.support.policies import BASE


def _told(words: list[str], capsys: pytest.CaptureFixture[str], *, events: bool = False) -> tuple[int, dict[str, Any]]:
    """Exit code and the one object on standard output, or the last line of standard error."""
    try:
        code = main([*words, "--json"])
    except SystemExit as ended:
        code = int(str(ended.code))
    output = capsys.readouterr()
    if events:
        assert output.out == ""
        return code, [json.loads(line) for line in output.err.splitlines()][-1]
    assert output.err.strip(), "words for people"
    return code, json.loads(output.out)


USAGE = [["check"], ["check", "valid.hcl", "--nope"], ["schema", "--format", "x"], ["digest"], ["approve"], ["key"],
         ["tenants"], ["machines"], ["machines", "add", "l"], ["machines", "sign", "l"],
         ["model"], ["model", "inspect"], ["model", "key", "k", "--key-version", "0"], ["tokenize"],
         ["infer", "valid.hcl"], ["infer", "valid.hcl", "--prompt", "x", "--max-tokens", "many"], ["plan-memory"],
         ["plan"], ["plan", "valid.hcl"],
         ["plan-memory", "valid.hcl", "--memory", "-1"], ["kernels", "build", "--jobs", "0"], ["image"],
         ["image", "build"], ["image", "build", "-o", "x", "--target", "nope"], ["image", "kubevirt"],
         ["image", "record"], ["image", "export", "x"], ["image", "sbom"], ["image", "container"], ["image", "boot"],
         ["evidence"],
         ["state", "disk"], ["nope"], []]


@pytest.mark.parametrize("words", USAGE, ids=" ".join)
def test_bad_usage_is_an_object(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Unknown options, missing arguments, bad numbers, of any verb or none."""
    code, found = _told(words, capsys)
    assert (2, 2, "usage") == (code, found["exit_code"], found["code"])
    assert {"exit_code", "code", "reason", "hint"} == set(found)
    assert found["hint"].startswith("appliance --help" if words in ([], ["nope"]) else f"appliance {words[0]} ")


@pytest.mark.parametrize("words", [
    ["check", "absent"], ["digest", "findings.hcl"], ["approve", "valid.hcl", "--key", "absent"],
    ["model", "inspect", "absent"], ["model", "verify", "absent"], ["model", "key", "valid.hcl"],
    ["model", "seal", "valid.hcl", "-o", "x", "--key", "absent"], ["tokenize", "valid.hcl", "x"],
    ["tenants", "valid.hcl", "--key", "signer.pem"], ["machines", "show", "valid.hcl"],
    ["machines", "sign", "valid.hcl", "--key", "signer.pem"], ["machines", "add", "l.json", "--custody", "x"],
    ["plan-memory", "findings.hcl"], ["plan", "valid.hcl", "findings.hcl"],
    ["image", "predict", "absent"], ["image", "reference", "absent"], ["image", "boot", "absent"],
    ["image", "lock", "--requirements", "absent"],
    ["image", "lock", "--requirements", "."], ["image", "lock", "--requirements", "noise"],
    ["image", "lock", "--requirements", "valid.hcl", "--mirror", "debian=http://127.0.0.1:1", "--mirror",
     "debian-security=http://127.0.0.1:1"], ["state", "absent", "--key", "absent"]],
    ids=" ".join)
def test_an_error_is_an_object(words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was found and what to do about it, apart from each other."""
    code, found = _told(words, capsys)
    assert (2, 2, False) == (code, found["exit_code"], "usage" == found["code"])
    assert {"exit_code", "code", "reason", "hint"} <= set(found)
    assert ("diagnostics" in found) == ("findings.hcl" in words)


@pytest.mark.parametrize(("words", "code"), [
    (["connect"], "usage"), (["connect", "foo://x", "--policy", "valid.hcl"], "url-invalid"),
    (["connect", "http://127.0.0.1:1", "--policy", "valid.hcl"], "unreachable"), (["serve"], "usage"),
    (["connect", "http://127.0.0.1:1", "--policy", "valid.hcl", "--listen", "0.0.0.0:1"], "listen-address"),
    (["serve", "absent"], "policy-unreadable"), (["serve", "valid.hcl", "--listen-port", "x"], "usage")],
    ids=str)
def test_verbs_of_events_tell_it_among_them(words: list[str], code: str, folder: Path,
                                            capsys: pytest.CaptureFixture[str]) -> None:
    """Their standard error is JSON lines to the last; serve's standard output is the audit log."""
    exit_code, found = _told(words, capsys, events=True)
    assert (2, "error", 2, code) == (exit_code, found["event"], found["exit_code"], found["code"])


@pytest.mark.parametrize("verb", VERBS)
def test_no_option_is_known_by_its_beginning(verb: str) -> None:
    """`--js` was read as --json, and not where errors of usage looked for it; it is an error now."""
    for parser in _parsers(cli.parser_of(verb)):
        assert not parser.allow_abbrev, parser.prog


def test_bytes_to_sign_are_told_as_an_object(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where nothing else is printed."""
    assert 0 == main(["approve", "valid.hcl", "--message", "message", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert "message" == found["message"]
    assert bytes.fromhex(found["policy_sha384"]) in (folder / "message").read_bytes()


def test_verify_keeps_its_form_on_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever reads verdicts reads this one."""
    code, found = _told(["verify", "somewhere"], capsys)
    assert (2, "could not check", "usage", None, []) == (
        code, found["verdict"], found["code"], found["target"], found["findings"])


def test_an_inference_by_a_policy_with_findings_is_an_object(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its exit code is that of findings, which are all there."""
    code, found = _told(["infer", "findings.hcl", "--prompt", "x"], capsys)
    assert (1, 1, "policy-invalid") == (code, found["exit_code"], found["code"])
    assert found["diagnostics"]


def test_a_refused_model_file_says_why(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not the code alone."""
    code, found = _told(["model", "verify", "valid.hcl"], capsys)
    assert (1, "refused", "model-malformed") == (code, found["verdict"], found["code"])
    assert "GGUF" in found["reason"]


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from _parsers(each)


@pytest.mark.parametrize("verb", VERBS)
def test_help_says_what_a_verb_does_and_every_default(verb: str) -> None:
    """No action without a description, no argument without help, and no default that is not told."""
    for parser in _parsers(cli.parser_of(verb)):
        if not parser.prog.startswith(f"appliance {verb}"):
            continue
        assert parser.description, parser.prog
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                continue
            assert action.help, (parser.prog, action.dest)
            if action.option_strings and action.nargs != 0 and action.default not in (None, []):
                assert "default" in action.help, (parser.prog, action.dest)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a valid policy and one that is not."""
    (tmp_path / "valid.hcl").write_text(BASE)
    (tmp_path / "findings.hcl").write_text("x = 1\n")
    (tmp_path / "noise").write_bytes(b"\xff\xfe")
    (tmp_path / "signer.pem").write_bytes(Ed25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    monkeypatch.chdir(tmp_path)
    return tmp_path
