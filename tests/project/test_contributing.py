"""The recipes name files that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_paths_of_the_recipes_exist() -> None:
    """Each file and folder that a recipe names, but for the place of one to be made."""
    named = re.findall(r"`((?:appliance|tests|examples|image)/[\w/.]*)`", (ROOT / "CONTRIBUTING.md").read_text())
    assert len(named) > 20
    assert [] == [path for path in named if not (ROOT / path).exists()]
