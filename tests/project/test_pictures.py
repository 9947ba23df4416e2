"""The terminal pictures show what the commands print today, and need nothing from elsewhere."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from tests.support.images import MODELS
from tests.support.require import absent

ROOT = Path(__file__).parents[2]
PICTURES = sorted((ROOT / "docs/pictures").glob("*.svg"))
_VARIES = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ|[0-9a-f]{12}…|\d\.\d+e\+\d\d|textLength=\"[0-9.]+\"")


@pytest.fixture(scope="module")
def drawing() -> ModuleType:
    """The script."""
    path = ROOT / "docs/site/pictures.py"
    spec = importlib.util.spec_from_file_location("pictures", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


def test_a_check_as_it_is_drawn(drawing: ModuleType, tmp_path: Path) -> None:
    """To the letter. Else: python docs/site/pictures.py."""
    assert (ROOT / "docs/pictures/check.svg").read_text() == drawing.drawn("check", drawing._check(tmp_path))


@pytest.mark.slow
def test_all_pictures_as_they_are_drawn(drawing: ModuleType, tmp_path: Path) -> None:
    """But for times and digests. Else: python docs/site/pictures.py."""
    if not (MODELS / "SmolLM2-135M-Instruct.Q4_1.gguf").is_file():
        absent("no demo model: run `make demo`")
    real = {name: drawing.drawn(name, said) for name, said in drawing.taken(tmp_path).items()}
    assert {path.stem for path in PICTURES} == real.keys()
    for path in PICTURES:
        assert _VARIES.sub("", path.read_text()) == _VARIES.sub("", real[path.stem]), path.name


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_a_picture_is_self_contained_and_told(path: Path, drawing: ModuleType) -> None:
    """It names nothing to fetch, each line fits, and a page shows it with the same text for those who do not see it."""
    text = path.read_text()
    tree = ElementTree.fromstring(text)  # noqa: S314 - our own
    assert [] == re.findall(r"href|url\(|@import|<script", text)
    wide = float(tree.attrib["viewBox"].split()[2])
    for line in tree.iter("{http://www.w3.org/2000/svg}text"):
        assert float(line.attrib["x"]) + float(line.attrib["textLength"]) < wide
    shown = [page for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
             if f"![{drawing.ALT[path.stem]}](" in page.read_text()]
    assert 1 == len(shown), path.name
