"""The verbs on policies: output, JSON and exit codes."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from appliance.cli.main import main
from appliance.policy import policy_digest
from appliance.policy.explaining.checking import check
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
    """A valid file gives exit code 0 and one line: the schema that it is written in, and that this version boots it."""
    for version in (1, 2):
        path = write(in_schema(version))
        assert 0 == main(["check", path])
        assert f"{path}: valid, schema {version}; this version boots it\n" == capsys.readouterr().out


def test_check_findings(write, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    """Findings give exit code 1, and each stands in the output with its place and fix."""
    path = write(with_lines("limits", 'prompt_tokens = 0\nfirst_token_timeout = "1x"'))
    assert 1 == main(["check", path])
    out = capsys.readouterr().out
    assert f"{path}:15:17: error[value]: prompt_tokens is 0" in out
    assert f"{path}:16:23: error[value]: first_token_timeout" in out
    assert 2 == out.count("  fix: ")
    assert f"{path}: not valid (2 errors)" == out.splitlines()[0]


NOWHERE = {  # valid, and no machine and no file makes this version boot it
    "streaming": ("model", "streaming_decrypt = true", 'model "demo".streaming_decrypt', "unbootable"),
    "template": ("model", 'chat_template = "{% if"', 'model "demo".chat_template', "unbootable"),
}


@pytest.mark.parametrize("name", NOWHERE)
@pytest.mark.parametrize("schema", [1, 2])
def test_check_tells_what_this_version_does_not_boot(schema: int, name: str, write: Any,
                                                     capsys: pytest.CaptureFixture[str]) -> None:
    """The file is valid; the first line names the field, a note says why, and the exit code is one of its own."""
    block, lines, field, code = NOWHERE[name]
    path = write(in_schema(schema, with_lines(block, lines)))
    assert 3 == main(["check", path])
    out = capsys.readouterr().out
    assert f"{path}: valid, schema {schema} (1 note); this version does not boot it, because of {field}" == (
        out.splitlines()[0])
    assert f"note[{code}]: " in out
    assert 3 == main(["check", "--json", path])
    found = json.loads(capsys.readouterr().out)
    assert (True, False, [field]) == (found["valid"], found["boots"], [each["path"] for each in found["diagnostics"]])


@pytest.mark.parametrize("verb", [["check"], ["check", "--upgrade"], ["digest"]])
def test_a_file_that_is_too_long_is_told_its_length(verb: list[str], write: Any,
                                                    capsys: pytest.CaptureFixture[str]) -> None:
    """In bytes, though it is not read to its end, beside the most that is allowed."""
    path = write(BASE + "#" * (5 << 20))
    assert 0 != main([*verb, path])
    said = capsys.readouterr()
    assert f"the file has {len(BASE) + (5 << 20)} bytes, more than the 1048576 bytes allowed" in said.out + said.err
    assert "make it shorter" in said.out + said.err


def test_a_copy_without_tenants_never_boots(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """It is for clients; `check` says so by the same code."""
    assert 0 == main(["digest", write(BASE), "--without-tenants"])
    assert 3 == main(["check", write(capsys.readouterr().out)])
    assert "a copy without tenants, which verifies but never boots" in capsys.readouterr().out


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
    assert (True, True, 1, [], policy_digest(policy).hex()) == tuple(
        found[key] for key in ("valid", "boots", "schema", "diagnostics", "digest"))


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


def _pem(path: Path, key: Any, *, public: bool = False, passphrase: bytes | None = None) -> str:
    """Write a key as `openssl` does, by another library's words."""
    encryption = (serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption())
    path.write_bytes(key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo) if public else key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption))
    return str(path)


@pytest.mark.parametrize("public", [True, False])
def test_key_public(public: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last 32 bytes of the key's DER (RFC 8410), or a curve's compressed point (SEC 1), as a policy has them."""
    keys = {"ed25519": Ed25519PrivateKey.generate(), "x25519": X25519PrivateKey.generate(),
            "p256": ec.generate_private_key(ec.SECP256R1())}
    for name, key in keys.items():
        path = _pem(tmp_path / f"{name}.pem", key, public=public)
        der = key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        expected = der[-32:].hex() if name != "p256" else f"{2 + der[-1] % 2:02x}{der[-64:-32].hex()}"
        assert 0 == main(["key", "public", path])
        assert f"{name}:{expected}\n" == capsys.readouterr().out
        assert 0 == main(["key", "public", path, "--json"])
        assert {"public_key": f"{name}:{expected}"} == json.loads(capsys.readouterr().out)


def test_key_public_goes_into_a_policy(write: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The printed line is what the field takes."""
    assert 0 == main(["key", "public", _pem(tmp_path / "a.pem", X25519PrivateKey.generate())])
    line = f'auditor_key = "{capsys.readouterr().out.strip()}"'
    assert 0 == main(["check", write(in_schema(2, with_lines("privacy", line)))])


def test_key_public_of_what_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A key of another kind, a certificate, a point of small order and a file of something else are refused by name."""
    rsa_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    (tmp_path / "text").write_text("hello")
    (tmp_path / "certificate").write_text("-----BEGIN CERTIFICATE-----\nMC4C\n-----END CERTIFICATE-----\n")
    small = X25519PublicKey.from_public_bytes(bytes(32))
    (tmp_path / "small").write_bytes(small.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo))
    for path, told in ((_pem(tmp_path / "rsa", rsa_key), "of a kind that no policy names"),
                       (str(tmp_path / "text"), "no key in PEM"), (str(tmp_path / "small"), "small order"),
                       (str(tmp_path / "certificate"), "a certificate in PEM, and no key")):
        assert 2 == main(["key", "public", path])
        said = capsys.readouterr()
        assert ("", True) == (said.out, told in said.err), said.err
        assert "hint: " in said.err


@pytest.mark.parametrize(("block", "line"), [
    ("privacy", 'auditor_key = "4f2a"'), ("privacy", "auditor_key = 7"),
    ("tenants", 'authority = "ed25519:00"'), ("tenants", f'authority = "ed25519:{"00" * 32}"'),
    ("audit", 'witness "w" {\n url = "https://w.example"\n}')])
def test_each_fix_that_wants_a_key_names_the_command(block: str, line: str) -> None:
    """Whatever is wrong with a key, or where it is missing, the fix says how to get one."""
    found = [each for each in check(in_schema(2, with_lines(block, line))).diagnostics if "key" in each.path
             or "authority" in each.path]
    assert found
    assert all("`appliance key public FILE.pem`" in each.fix for each in found if each.code in ("value", "missing"))


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
