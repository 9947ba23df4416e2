"""A file in the place of another kind is named, and nothing of it is shown."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

import pytest

from appliance.cli.main import main
from appliance.codec.filekind import LOOKED_AT
from appliance.mistakes import files
from appliance.models.sealed import header as sealed_header
from appliance.policy.explaining.checking import check_bytes
from tests.support.ggufs import ARRAY, STRING, U32, Tensor, build, kv, string
from tests.support.policies import BASE

SECRET = hashlib.sha256(b"a secret key").hexdigest()
PEM = "-----BEGIN {0}-----\nMC4CAQAwBQYDK2VwBCIEIAAA\n-----END {0}-----\n"

# file -> what it is called
FILES: dict[str, tuple[bytes, str]] = {
    "tenants": (b'{"format":"appliance/tenants/v1","list":{}}', "a list of tenants"),
    "evidence": (b'{\n  "a": [1],\n  "format": "appliance/evidence/v1"\n}', "evidence"),
    "json": (json.dumps([{"a": 1}]).encode(), "JSON"),
    "gguf": (build(), "a GGUF model"),
    "sealed": (sealed_header.MAGIC + bytes(100), "a sealed model"),
    "key": (SECRET.encode() + b"\n", "the key of a model or a state disk"),
    "versioned key": (f"appliance/key/v1\nversion 3\nkey {SECRET}\n".encode(), "the key of a model or a state disk"),
    "private": (PEM.format("PRIVATE KEY").encode(), "a private key in PEM"),
    "certificate": (PEM.format("CERTIFICATE").encode(), "a certificate in PEM"),
    "json of a policy": (b'{"appliance": {"name": "x", "schema": 2}}', "JSON"),
    "json with comments": (b'// a policy\n{ appliance: { name: "x" } }', "JSON"),
    "json behind a mark": (b'\xef\xbb\xbf{"appliance": {}}', "JSON"),
    "yaml": (b"# a policy\nappliance:\n  name: x\n", "YAML"), "yaml of a document": (b"---\nname: x\n", "YAML"),
    "yaml of a list": (b"- name: x\n", "YAML"), "yaml of a cluster": (b"apiVersion: v1\r\nkind: ConfigMap\r\n", "YAML"),
    "toml": (b'[appliance]\nname = "x"\n', "TOML"), "toml of tables": (b"[[model]]\n", "TOML"),
    "binary": (b"\x7fELF\2\1\1" + bytes(90), "binary data"),
}


@pytest.mark.parametrize("name", FILES)
def test_what_is_no_policy_is_one_finding(name: str) -> None:
    """It says what the file is, and shows no line of it."""
    data, what = FILES[name]
    found = check_bytes(data, "x.hcl").diagnostics
    assert [("kind", f"this is {what}, not a policy")] == [(each.code, each.summary) for each in found]
    assert SECRET[:4] not in str(found[0])
    assert "MC4C" not in str(found[0])


@pytest.mark.parametrize("text", [BASE, "", "\ufeff" + BASE, BASE.replace("\n", "\r\n"), "# {\n" + BASE, "{" + BASE,
                                  "GGU", "x = 1\n", SECRET[:-1], f'"{SECRET}"', "model: {\n}\n", "# a: b\n" + BASE])
def test_what_may_be_a_policy_is_judged_as_one(text: str) -> None:
    """Mistakes in a policy are shown where they are."""
    assert "kind" not in {each.code for each in check_bytes(text.encode()).diagnostics}


@pytest.mark.parametrize("action", [["model", "inspect"], ["model", "pin"], ["model", "verify"], ["tokenize"]])
@pytest.mark.parametrize("name", ["tenants", "key", "private", "policy"])
def test_what_is_no_model_is_called_by_its_name(action: list[str], name: str, tmp_path: Path,
                                                capsys: pytest.CaptureFixture[str]) -> None:
    """Not damaged, and no pin is printed of it; the file is named whatever its name is."""
    path = tmp_path / "k"
    data, what = (BASE.encode(), "a policy, by its looks") if name == "policy" else FILES[name]
    path.write_bytes(data)
    words = [*action, str(path), *(["x"] if action == ["tokenize"] else [])]
    assert (1 if "verify" in action else 2) == main(words)
    output = capsys.readouterr()
    assert "" == output.out
    assert output.err.startswith(f"error[model-malformed]: {path}: byte 0: this is {what}; needed: a GGUF file\n")
    assert SECRET[:4] not in output.err


def test_a_model_that_does_not_run_here_is_pinned_with_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]
                                                              ) -> None:
    """Another engine may run it; what is damaged is not pinned."""
    path = tmp_path / "x.gguf"
    path.write_bytes(build([string("a") + struct.pack("<IIQIQI", ARRAY, ARRAY, 1, U32, 1, 7)]))
    assert 0 == main(["model", "pin", str(path)])
    output = capsys.readouterr()
    assert output.out.startswith('model "x" {')
    assert output.err.startswith("note: ")
    path.write_bytes(build([kv("a", STRING, "b")], [Tensor("t", 0, (4,), bytes(16))])[:-40])
    assert 2 == main(["model", "pin", str(path)])
    assert "" == capsys.readouterr().out


@pytest.mark.parametrize(("words", "told"), [
    (["approve", "policy", "--key", "certificate"], "key: certificate is a certificate in PEM"),
    (["approve", "policy", "--key", "key"], "key: key is the key of a model"),
    (["tenants", "policy", "--key", "private"], "it is a policy, by its looks"),
    (["evidence", "key"], "it is the key of a model"),
    (["verify", "http://127.0.0.1:1", "--policy", "policy", "--measurements", "tenants", "--measurements-unsigned"],
     "it is a list of tenants"),
    (["model", "unseal", "key", "-o", "y", "--key", "mine"], "this is the key of a model")], ids=str)
def test_other_verbs_name_it_too(words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                 capsys: pytest.CaptureFixture[str]) -> None:
    """Keys, lists, evidence and measurements."""
    monkeypatch.chdir(tmp_path)
    for name, (data, _) in FILES.items():
        Path(name).write_bytes(data)
    Path("policy").write_text(BASE)
    assert 0 == main(["model", "key", "mine"])
    capsys.readouterr()
    assert 2 == main(words)
    output = capsys.readouterr()
    assert told in output.out + output.err
    assert SECRET[:4] not in output.out + output.err


def test_a_kind_is_never_guessed_from_deep_inside() -> None:
    """What decides is the beginning."""
    assert files.of(b"x" * LOOKED_AT + b"\nmodel \"a\" {") is None
