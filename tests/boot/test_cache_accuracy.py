"""Formats of keys and values that change a family's answers: `check` and `plan-memory` say so.

The numbers were measured with real models: `docs/concepts/accuracy.md`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from appliance.boot.planning import cache_accuracy
from appliance.cli.main import main
from appliance.families.table import FAMILIES
from tests.support import family_models
from tests.support.server import write_policy

DOCS = Path(__file__).parents[2] / "docs/concepts/accuracy.md"


@pytest.mark.parametrize(("family", "kind", "warned"), [
    ("qwen2", "q4", True), ("qwen2vl", "q4", True), ("qwen2", "q8", False), ("qwen2", "f16", False),
    ("llama", "q4", False), ("starcoder2", "q4", False)])
def test_check_and_plan_warn(family: str, kind: str, warned: bool, tmp_path: Path,
                             capsys: pytest.CaptureFixture[str]) -> None:
    """Of a family that is known to suffer, at the line; the policy stays valid."""
    file = tmp_path / "tiny.gguf"
    file.write_bytes(family_models.model(family))
    policy = str(write_policy(tmp_path, {"tiny": file}, schema=2, model=f'kv_cache = "{kind}"'))
    assert 0 == main(["check", "--json", policy])
    found = [each for each in json.loads(capsys.readouterr().out)["diagnostics"] if each["code"] == "kv-cache"]
    assert warned == (len(found) == 1)
    if warned:
        assert ("warning", True) == (found[0]["severity"], f'kv_cache = "{kind}" changes the answers of {family}'
                                     in found[0]["summary"])
    assert 0 == main(["plan-memory", "--no-speed", policy])
    assert warned == (f'warning: model tiny: kv_cache = "{kind}" changes' in capsys.readouterr().err)


def test_the_table_is_the_documents() -> None:
    """Each row of the product's table stands in the document, with its numbers."""
    text = DOCS.read_text(encoding="utf-8")
    for (family, kind), found in cache_accuracy.MEASURED.items():
        assert family in FAMILIES
        row = rf"\| {re.escape(found.model)}[^|]* \| {kind} \| {found.divergence:g} \| {found.same}%"
        assert re.search(row, text), row
