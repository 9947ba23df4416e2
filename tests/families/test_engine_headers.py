"""Headers of real models, as llama.cpp's converter writes them, where they lie beside the project: all get a verdict.

They have no weights: the verdict is that of metadata.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appliance.boot.planning import fitness
from appliance.cli.main import main
from appliance.errors import ModelError
from tests.support import family_models, require

FOLDER = Path(__file__).parents[3] / "shared/headers"
# The file's name without its ending -> what a refusal says; None for a model that runs.
VERDICTS: dict[str, str | None] = {
    **dict.fromkeys((
        "command-r7b-cohere2", "ernie-4.5-0.3b", "exaone-4.0-1.2b", "falcon-40b", "gemma-3-27b-it",
        "gemma-4-12b-it-unified", "gemma-4-26b-a4b", "gpt-oss-20b", "granite-4.0-micro-dense", "granite-4.0-h-tiny",
        "lfm2.5-1.2b", "ministral-3-8b",
        "mixtral-llama-moe", "olmo-3-7b", "olmo-3-new-style-rope-parameters", "phi-4-mini",
        "qwen2.5-7b-with-yarn-128k", "qwen3-30b-a3b", "qwen3-embedding-0.6b", "qwen3-vl-2b-text",
        "qwen3.6-27b-3.5-9b-qwen35", "seedoss-36b", "smollm3-3b")),
    "bge-e5-bert": "makes embeddings", "gemma-2-9b": "attn_logit_softcapping",
    "hunyuan-dense-7b": "normalised after they are turned",
}


def _value(value: Any) -> Any:
    """A value as the parser of files gives it: arrays of numbers are numpy's; a long one stands for its length."""
    if isinstance(value, dict):
        return [f"word {index}" for index in range(value["length"])]
    if isinstance(value, list):
        return np.array(value, bool if isinstance(value[0], bool) else np.int32)
    return value


def _headers() -> dict[str, dict[str, Any]]:
    if not FOLDER.is_dir():
        require.absent("headers of real models, in the folder shared/headers beside the project")
    return {path.stem: {key: _value(value) for key, value in json.loads(path.read_text()).items()}
            for path in sorted(FOLDER.glob("*.json"))}


def test_each_header_gets_its_verdict() -> None:
    """It runs, or its refusal says the decisive reason."""
    found = {}
    for name, header in _headers().items():
        try:
            fitness.judge(header)
            found[name] = None
        except ModelError as error:
            found[name] = f"{error.summary} {error.hint}"
    assert VERDICTS.keys() >= found.keys() != set()
    wrong = {name: said for name, said in found.items()
             if (said is None) != (VERDICTS[name] is None) or (VERDICTS[name] or "") not in (said or "")}
    assert {} == wrong


def test_inspect_shows_the_number_of_an_array(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of key-value heads as Granite 4's files have them."""
    file = tmp_path / "m.gguf"
    file.write_bytes(family_models.model("granite.four"))
    assert 0 == main(["model", "inspect", str(file)])
    assert "\nKV heads        2\n" in capsys.readouterr().out
