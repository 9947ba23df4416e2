"""The page of extension points: each registry that it names has rows, and each recipe's registry is on it."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/extension-points.md").read_text()
REGISTRIES = [(name, path) for names, path in re.findall(r"((?:`\w+`(?:, | and )?)+) in `(appliance/[\w/]+\.py)`", PAGE)
              for name in re.findall(r"`(\w+)`", names)]


@pytest.mark.parametrize(("name", "path"), REGISTRIES, ids=str)
def test_a_registry_has_rows(name: str, path: str) -> None:
    """At least two, since a registry of one kind is not needed. One is a function, of the words that a policy adds."""
    registry = getattr(importlib.import_module(path.removesuffix(".py").replace("/", ".")), name)
    assert callable(registry) if name.islower() else len(registry) >= 2


def test_the_registries_of_recipes_are_on_the_page() -> None:
    """The tables that a recipe asks for a row of."""
    recipes = (ROOT / "CONTRIBUTING.md").read_text().partition("## Recipes")[2]
    asked = set(re.findall(r"`([A-Z]{3,})` (?:of|in) `(appliance/[\w/]+\.py)`", " ".join(recipes.split())))
    assert len(asked) >= 5
    other = {"SAMPLERS", "ELSEWHERE", "ADJUSTMENTS", "HIGHEST"}  # beside a registry's row
    assert [] == sorted(f"{name} {path}" for name, path in asked
                        if name not in other and (name, path) not in REGISTRIES)


def test_folders_of_the_page_are_there() -> None:
    """Where the rows are files."""
    folders = re.findall(r"the files in `(appliance/[\w/]+/)`", PAGE)
    assert folders
    assert [] == [folder for folder in folders if not [*(ROOT / folder).glob("*.toml")]]
