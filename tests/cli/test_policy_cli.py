"""The verbs on policies: output, JSON and exit codes."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from appliance.cli.main import main
from appliance.policy import check, policy_digest
from tests.support.policies import BASE, in_schema, with_lines

ROOT = Path(__file__).parents[2]


@pytest.fixture
def write(tmp_path: Path):  # type: ignore[no-untyped-def]
    """Return a function that writes a policy file and returns its path."""
    def inner(text: str) -> str:
        path = tmp_path / "deployment.hcl"
        path.write_text(text)
        return str(path)
    return inner


def test_check_valid(write, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    """A valid file gives exit code 0 and one line, which says the schema that it is written in."""
    for version in (1, 2):
        path = write(in_schema(version))
        assert 0 == main(["check", path])
        assert f"{path}: valid, schema {version}\n" == capsys.readouterr().out


def test_check_findings(write, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    """Findings give exit code 1, and each stands in the output with its place and fix."""
    path = write(with_lines("limits", 'prompt_tokens = 0\nfirst_token_timeout = "1x"'))
    assert 1 == main(["check", path])
    out = capsys.readouterr().out
    assert f"{path}:15:17: error[value]: prompt_tokens is 0" in out
    assert f"{path}:16:23: error[value]: first_token_timeout" in out
    assert 2 == out.count("  fix: ")
    assert f"{path}: not valid (2 errors)" in out


def test_check_notes(write, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    """What this version does not enforce is a note, and the file is valid."""
    assert 0 == main(["check", write(with_lines("privacy", 'redaction { detectors = ["email"] }'))])
    out = capsys.readouterr().out
    assert 'note[unenforced]: privacy.redaction.detectors: not enforced by this version' in out
    assert "valid, schema 1 (1 note)" in out


def test_check_json(write, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    """The JSON has the same findings, with line, column, fix and path."""
    assert 1 == main(["check", "--json", write(with_lines("limits", "prompt_tokens = 0"))])
    found = json.loads(capsys.readouterr().out)
    assert (False, None) == (found["valid"], found["digest"])
    finding = found["diagnostics"][0]
    assert ("error", "value", 15, 17, "limits.prompt_tokens") == tuple(
        finding[key] for key in ("severity", "code", "line", "column", "path"))
    assert finding["fix"]
    assert 0 == main(["check", "--json", write(BASE)])
    found = json.loads(capsys.readouterr().out)
    policy = check(BASE).policy
    assert policy is not None
    assert (True, 1, [], policy_digest(policy).hex()) == tuple(
        found[key] for key in ("valid", "schema", "diagnostics", "digest"))


@pytest.mark.parametrize(("declared", "found"), [("1", 1), ("2", 2), ('"1"', 1), ("3", None), ("true", None)])
def test_check_json_tells_the_declared_schema(declared: str, found: int | None, write: Any,
                                              capsys: pytest.CaptureFixture[str]) -> None:
    """The schema that a file declares is told whether or not the file is valid; null for an unknown one."""
    main(["check", "--json", write(BASE.replace("schema = 1", f"schema = {declared}"))])
    assert found == json.loads(capsys.readouterr().out)["schema"]


@pytest.mark.parametrize("verb", [["check"], ["check", "--json"], ["digest"], ["digest", "--json"]])
def test_cannot_run(verb: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is not there gives exit code 2 and one line on stderr, with --json an object as well."""
    assert 2 == main([*verb, str(tmp_path / "none.hcl")])
    captured = capsys.readouterr()
    assert "error[policy-unreadable]" in captured.err
    if "--json" in verb:
        assert (2, "policy-unreadable") == tuple(json.loads(captured.out)[key] for key in ("exit_code", "code"))
    else:
        assert "" == captured.out


def test_digest(write, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    """The digest is printed in hex; the JSON has all forms."""
    path = write(BASE)
    assert 0 == main(["digest", path])
    digest = capsys.readouterr().out.strip()
    policy = check(BASE).policy
    assert policy is not None
    assert policy_digest(policy).hex() == digest
    assert 0 == main(["digest", path, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (digest, 1, hashlib.sha384(BASE.encode()).hexdigest()) == (
        found["policy_sha384"], found["schema"], found["source_sha384"])
    assert 64 == len(found["host_data"])
    assert 0 == main(["digest", path, "--without-tenants"])
    copy = capsys.readouterr().out
    assert "acme" not in copy
    again = check(copy).policy
    assert again is not None
    assert digest == policy_digest(again).hex()


def test_digest_of_an_invalid_policy(write, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    """An invalid policy has no digest; its findings are shown."""
    assert 0 != main(["digest", write(with_lines("limits", "prompt_tokens = 0"))])
    captured = capsys.readouterr()
    assert "" == captured.out
    assert "prompt_tokens is 0" in captured.err


def test_key_new(write, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    """A new key is random, its hash is the SHA-256 of its text, and the printed line is valid in a policy."""
    keys = set()
    for _ in range(2):
        assert 0 == main(["key", "new", "--json"])
        found = json.loads(capsys.readouterr().out)
        assert hashlib.sha256(found["api_key"].encode()).hexdigest() == found["api_key_sha256"]
        assert re.fullmatch(r"sk-appliance-[A-Za-z0-9_-]{43}", found["api_key"])
        keys.add(found["api_key"])
    assert 2 == len(keys)
    assert 0 == main(["key", "new"])
    out = capsys.readouterr().out
    line = next(line for line in out.splitlines() if "api_key_sha256" in line)
    assert 0 == main(["check", write(re.sub(r".*api_key_sha256.*", line, BASE))])


@pytest.mark.parametrize(("words", "page"), [
    ([], "policy.md"), (["--version", "2"], "policy.md"), (["--version", "1"], "policy-schema-1.md")])
def test_schema(words: list[str], page: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The reference in the docs is what the command prints, for each version; both forms are there."""
    assert 0 == main(["schema", *words])
    assert (ROOT / "docs/reference" / page).read_text() == capsys.readouterr().out, "run: make reference"
    for flag in (["--json"], ["--format", "json-schema"]):
        assert 0 == main(["schema", *words, *flag])
        found = json.loads(capsys.readouterr().out)
        assert "https://json-schema.org/draft/2020-12/schema" == found["$schema"]
        assert f"schema version {words[-1] if words else 2}" == found["$comment"]


@pytest.mark.parametrize("version", [1, 2])
def test_schema_table(version: int, capsys: pytest.CaptureFixture[str]) -> None:
    """The table that the digest is made by can be printed: the file beside the code."""
    assert 0 == main(["schema", "--format", "table", "--version", str(version)])
    assert (ROOT / f"appliance/policy/schema/schema_{version}.json").read_text() == capsys.readouterr().out


def test_schema_of_no_version(capsys: pytest.CaptureFixture[str]) -> None:
    """A version that does not exist is bad usage, and those that do are named."""
    with pytest.raises(SystemExit) as caught:
        main(["schema", "--version", "3"])
    assert 2 == caught.value.code
    assert "expected a whole number from 1 to 2" in capsys.readouterr().err


def test_demo_key_is_the_documented_one() -> None:
    """The demo policy admits the API key that the documentation names."""
    digest = hashlib.sha256(b"sk-appliance-demo").hexdigest()
    policy = check((ROOT / "examples/demo.hcl").read_text()).policy
    assert policy is not None
    assert ((digest,),) == tuple(tenant.api_key_sha256 for tenant in policy.tenants.tenants)
