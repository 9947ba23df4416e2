"""The forms of errors, read from the sources: for each code what its messages say, and their hints.

`python -m appliance.manual.forms` prints them as JSON; `make reference` keeps them in `forms.json`.
"""

from __future__ import annotations

import ast
import json
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_PACKAGE = Path(__file__).parents[1]
_LEFT = "…"  # in the place of what a message says of the case at hand
_CODE, _HINT = "code", "hint"


class Form(NamedTuple):
    """A message with its hint, without the parts that depend on the case."""

    message: str
    hint: str


@dataclass(frozen=True)
class _Helper:
    """A function or class that takes a code: the place of that argument, and its default."""

    place: int
    default: str | None
    message: int = 0


def read(package: Path = _PACKAGE) -> dict[str, list[Form]]:
    """Return the forms by code, in the order of the code's letters."""
    trees = {path: ast.parse(path.read_bytes()) for path in sorted(package.rglob("*.py"))}
    helpers = dict(pair for tree in trees.values() for pair in _helpers(tree))
    found: dict[str, list[Form]] = defaultdict(list)
    for tree in trees.values():
        for code, form in _forms(tree, helpers):
            if form.message and form not in found[code]:
                found[code].append(form)
    return {code: found[code] for code in sorted(found)}


def _helpers(tree: ast.AST) -> Iterator[tuple[str, _Helper]]:
    """Yield the makers of errors: classes and functions that have a `code`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for line in node.body:
                if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name) and (
                        line.targets[0].id == _CODE) and (code := _text(line.value)):
                    yield node.name, _Helper(-1, code)
        elif isinstance(node, ast.FunctionDef):
            names = [each.arg for each in node.args.args]
            if _CODE in names and node.name != "__init__":
                place = names.index(_CODE)
                defaults = [None] * (len(names) - len(node.args.defaults)) + [*node.args.defaults]
                default = defaults[place]
                yield node.name, _Helper(place - (names[0] in ("self", "cls")), (default and _text(default)) or None)


def _forms(tree: ast.AST, helpers: Mapping[str, _Helper]) -> Iterator[tuple[str, Form]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        given = {each.arg: each.value for each in node.keywords}
        helper = helpers.get(name)
        code = _text(given[_CODE]) if _CODE in given else None
        if code is None and helper is not None and _CODE not in given:
            late = len(node.args) > helper.place >= 0
            code = _text(node.args[helper.place]) if late else helper.default
        if code:
            hint = _text(given[_HINT]) if _HINT in given else ""
            yield code, Form(_text(node.args[0]) or "", hint or "")


def _text(node: ast.expr) -> str | None:
    """Return a text of the source; None for what is computed wholly."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(each) or _LEFT for each in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return (_text(node.left) or _LEFT) + (_text(node.right) or _LEFT)
    return None


def known() -> dict[str, list[Form]]:
    """Return the forms of the manual's codes. Other texts of the sources look like codes."""
    rows = tomllib.loads((Path(__file__).parent / "codes.toml").read_text())
    codes = {code for group in rows.values() for code in group}
    return {code: found for code, found in read().items() if code in codes}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(known(), indent=1, ensure_ascii=False) + "\n")
