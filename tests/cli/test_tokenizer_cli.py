"""`appliance tokenize`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from appliance.cli.main import main
from tests.support.ggufs import STRING, build, kv, kv_array
from tests.support.vocabularies import byte_level, vocabulary_file


def test_tokens_and_pieces(capsys: pytest.CaptureFixture[str]) -> None:
    """Ids and pieces, one line each; control tokens only when asked for."""
    model = str(vocabulary_file("qwen2"))
    assert 0 == main(["tokenize", model, "--parse-special", "<|im_start|>Hi é"])
    assert ["151644  '<|im_start|>'", "13048  'Hi'", "3958  ' é'"] == [
        line.strip() for line in capsys.readouterr().out.splitlines()]
    assert 0 == main(["tokenize", model, "<|im_start|>"])
    assert "151644" not in capsys.readouterr().out


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    """One JSON object with tokens, pieces and the text again; bos where the model adds it and it is asked for."""
    model = str(vocabulary_file("llama-spm"))
    assert 0 == main(["tokenize", "--json", "--add-special", model, "Hello"])
    found = json.loads(capsys.readouterr().out)
    assert {"tokens": [1, 15043], "pieces": ["<s>", " Hello"], "text": "<s> Hello"} == found


def test_files_that_are_no_models(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A missing, empty or foreign file, or a pipe, ends with exit code 2 and an error, without a traceback."""
    (tmp_path / "empty").touch()
    (tmp_path / "foreign").write_bytes(b"PK\x03\x04" * 10)
    os.mkfifo(tmp_path / "pipe")
    for name in ("missing", "empty", "foreign", "pipe"):
        assert 2 == main(["tokenize", str(tmp_path / name), "x"])
        assert capsys.readouterr().err.startswith("error[")


def test_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    """A token that is added and in the text, too, is told on standard error."""
    model = str(vocabulary_file("llama-spm"))
    assert 0 == main(["tokenize", "--add-special", "--parse-special", model, "<s>Hello"])
    output = capsys.readouterr()
    assert output.err.startswith("warning: the prompt begins with '<s>', which is added anyway")
    assert ["1  '<s>'", "1  '<s>'"] == [line.strip() for line in output.out.splitlines()[:2]]
    assert 0 == main(["tokenize", "--add-special", model, "<s>Hello"])
    assert "" == capsys.readouterr().err


def test_a_vocabulary_without_a_pre_tokenizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`inspect` shows which is used, `tokenize` warns; a file that names one shows its own."""
    path = tmp_path / "m.gguf"
    metadata = byte_level()
    path.write_bytes(build([
        kv("general.architecture", STRING, "gpt2"), kv("tokenizer.ggml.model", STRING, "gpt2"),
        kv_array("tokenizer.ggml.tokens", STRING, metadata["tokenizer.ggml.tokens"]),
        kv_array("tokenizer.ggml.merges", STRING, ["a b"])]))
    assert 0 == main(["model", "inspect", str(path)])
    assert f"{'pre-tokenizer':<16}default (the file names none)\n" in capsys.readouterr().out
    assert 0 == main(["model", "inspect", str(path), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (None, "default") == (found["pre_tokenizer"], found["pre_tokenizer_used"])
    assert 0 == main(["tokenize", str(path), "ab"])
    assert "'default' is used" in capsys.readouterr().err
    assert 0 == main(["model", "inspect", str(vocabulary_file("qwen2"))])
    assert f"{'pre-tokenizer':<16}qwen2\n" in capsys.readouterr().out
