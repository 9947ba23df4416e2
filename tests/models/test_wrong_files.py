"""A file in the place of a model is called by its kind, with what to do, by every command that opens models."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.boot import checks
from appliance.cli.main import main
from appliance.codec import filekind
from appliance.errors import BootError, ModelError
from appliance.mistakes import weights
from appliance.models.catalogue import Catalogue
from appliance.models.sources.resident import open_resident
from appliance.policy import load
from appliance.policy.explaining.checking import check_bytes
from tests.support.server import sha256, write_policy
from tests.support.wrong_files import OLD, WRONG

ALL = WRONG | OLD


def _file(folder: Path, name: str) -> Path:
    path = folder / "m.gguf"
    path.write_bytes(ALL[name][0])
    return path


def _policy(path: Path) -> Path:
    """A policy that pins some other file of this name."""
    written = write_policy(path.parent, {"tiny": path})
    written.write_text(written.read_text().replace(sha256(path.read_bytes()), sha256(b"another")))
    return written


@pytest.mark.parametrize("name", ALL)
def test_inspect_names_the_kind(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error names file, kind and what to do, and nothing of the content."""
    path = _file(tmp_path, name)
    assert 2 == main(["model", "inspect", str(path)])
    output = capsys.readouterr()
    assert "" == output.out
    assert f"{path}: byte " in output.err
    assert ALL[name][1] in output.err
    assert "\n  hint: " in output.err
    assert "SECRET" not in output.err
    assert ("this is" in output.err) == (name in WRONG)


@pytest.mark.parametrize("name", ["error in JSON", "page", "LFS", "safetensors", "PyTorch", "pickle 2", "empty",
                                  "GGML"])
@pytest.mark.parametrize("words", [
    ["model", "pin", "m.gguf"], ["model", "verify", "m.gguf"], ["model", "unseal", "m.gguf", "-o", "y", "--key", "k"],
    ["model", "seal", "m.gguf", "-o", "y", "--key", "k"], ["tokenize", "m.gguf", "x"], ["plan-memory", "policy.hcl"],
    ["infer", "policy.hcl", "--prompt", "x"], ["check", "policy.hcl"]], ids=lambda words: " ".join(words[:2]))
def test_every_command_names_the_kind(name: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                      capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever opens a model says what the file is."""
    monkeypatch.chdir(tmp_path)
    path = _file(tmp_path, name)
    _policy(path)
    assert 0 == main(["model", "key", "k"])
    capsys.readouterr()
    code = main(words)
    output = capsys.readouterr()
    assert code == {"check": 0, "verify": 1}.get(words[0] if words[0] == "check" else words[1], 2) or name == "GGML"
    expected = "GGML's format from before GGUF" if name == "GGML" else ALL[name][1]
    assert expected in output.out + output.err
    assert "SECRET" not in output.out + output.err


@pytest.mark.parametrize("name", ALL)
def test_the_boot_names_the_kind(name: str, tmp_path: Path) -> None:
    """In its first step, as for a file that cannot run."""
    path = _file(tmp_path, name)
    loaded = load(_policy(path))
    with pytest.raises(BootError) as caught:
        checks.check(loaded, checks.Operator(), Catalogue({"tiny": path}))
    assert ALL[name][1] in caught.value.summary
    assert "SECRET" not in caught.value.summary


@pytest.mark.parametrize("name", ALL)
def test_loading_names_the_kind(name: str, tmp_path: Path) -> None:
    """The loader itself says so, too, where no check came before it."""
    with pytest.raises(ModelError) as caught:
        open_resident(_file(tmp_path, name), interleave=lambda *parts: None)
    assert ALL[name][1] in str(caught.value)


def test_a_sealed_model_that_is_none(tmp_path: Path, tiny_model: Path) -> None:
    """A page in the place of a sealed model is called a page."""
    path = _file(tmp_path, "page")
    policy = write_policy(tmp_path, {"tiny": path})
    policy.write_text(policy.read_text().replace(
        'file   = "m.gguf"', f'file = "m.gguf"\n  sealed_header_sha256 = "{"ab" * 32}"\n'
        '  key {\n    provider = "file"\n    path = "/k"\n  }'))
    found = check_bytes(policy.read_bytes())
    assert found.valid, found.diagnostics
    with pytest.raises(BootError, match="this is an HTML page; needed: a sealed model"):
        checks.check(load(policy), checks.Operator(), Catalogue({"tiny": path}))


def test_a_folder_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder, such as one of safetensors, has a hint of its own."""
    assert 2 == main(["model", "inspect", str(tmp_path)])
    said = capsys.readouterr().err
    assert f"{tmp_path} is a folder; allowed: a regular file\n  hint: name the GGUF file itself" in said


def test_a_folder_of_peft(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It holds an adapter, and the hint says what to do with one; so do its two files."""
    config = tmp_path / "adapter_config.json"
    config.write_text('{"base_model_name_or_path": "a/b", "peft_type": "LORA", "r": 8}')
    header = b'{"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight":{"dtype":"F32"}}'
    weights = tmp_path / "adapter_model.safetensors"
    weights.write_bytes(len(header).to_bytes(8, "little") + header + bytes(64))
    for path, kind in ((tmp_path, "is a folder"), (config, "configuration of a PEFT adapter"),
                       (weights, "safetensors file of a PEFT adapter")):
        assert 2 == main(["model", "inspect", str(path)])
        said = capsys.readouterr().err
        assert (True, True, True) == (kind in said, "merge it into that model" in said,
                                      "convert_hf_to_gguf.py" in said), said


@pytest.mark.parametrize("name", sorted(WRONG.keys() - {"words", "words of others", "empty", "broken off", "PDF"}))
def test_what_is_no_policy_either(name: str) -> None:
    """In the place of a policy the same file is named in one finding, or is binary data."""
    [found] = check_bytes(WRONG[name][0]).diagnostics
    assert "kind" == found.code
    assert "SECRET" not in str(found)


@pytest.mark.parametrize("text", [b"", b"x = 1\n", b"version = 1\n", b"<<EOT\n", b"# <html>\n", b"BZh = 2\n",
                                  b"MZ = 3\n"])
def test_what_may_be_a_policy_is_none_of_these(text: bytes) -> None:
    """A text that HCL could be is judged as a policy."""
    assert "kind" not in {each.code for each in check_bytes(text).diagnostics}
    assert weights.of(text) is None


def test_unknown_bytes_have_no_kind() -> None:
    """Random bytes, a GGUF file and zeros are not given a name."""
    for start in (b"\x00" * 100, b"\xfe\xed\xfa\xce\0\0", b"\x80\x81\x82", b"BZh9\x00\x01", bytes(range(128, 256))):
        assert filekind.instead_of_model(start) is None
