"""`appliance tokenize`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from appliance.cli.main import main
from tests.support.vocabularies import vocabulary_file


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
