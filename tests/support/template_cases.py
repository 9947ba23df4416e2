"""Small templates, one feature of the language each. Jinja2's results are a golden."""

from __future__ import annotations

from pathlib import Path
from typing import Any

VARIABLES: dict[str, Any] = {
    "text": "Hello World", "number": 7, "real": 2.5, "yes": True, "nothing": None, "empty": "", "items": [3, 1, 2],
    "words": ["b", "A", "c", "a"], "map": {"b": 1, "a": "x", "items": 5}, "users": [
        {"name": "ann", "age": 3, "on": True}, {"name": "Bob", "age": 1, "on": False}, {"name": "cy", "age": 2}],
    "lines": "a\nb\n\nc", "nested": [[1, 2], [3]], "unicode": "Zürich ß",
}
CASES = (Path(__file__).parents[1] / "goldens/template/language.txt").read_bytes().decode().split("\n----\n")
