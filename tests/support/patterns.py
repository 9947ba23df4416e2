"""Every regular expression of the package, found in its sources."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2] / "appliance"
CALLS = {"compile", "match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer"}
_IMPORTS = re.compile(r"^\s*(import|from)\b.*\b(re|regex)\b", re.MULTILINE)


@dataclass(frozen=True)
class Found:
    """A pattern as it stands in a source. `name`: the file, and the constant or the pattern's own text."""

    name: str
    module: str
    written: ast.expr
    flags: ast.expr | None

    def compiled(self) -> re.Pattern[Any]:
        """The pattern, with the module's own constants in it."""
        names = vars(importlib.import_module(self.module))
        flags = 0 if self.flags is None else _value(self.flags, names)
        return re.compile(_value(self.written, names), flags)


    def written_text(self) -> str:
        """The expression of the pattern, as it stands."""
        return ast.unparse(self.written)


def _value(written: ast.expr, names: dict[str, Any]) -> Any:
    return eval(compile(ast.Expression(written), "<pattern>", "eval"), dict(names))  # noqa: S307  our own source


def found() -> Iterator[Found]:
    """All of them. AssertionError where a source imports `re` in a way that this does not follow."""
    for path in sorted(ROOT.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if _IMPORTS.search(source) is None:  # to parse all takes seconds
            continue
        tree = ast.parse(source)
        place = path.relative_to(ROOT)
        module = ".".join(("appliance", *place.with_suffix("").parts)).removesuffix(".__init__")
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                strange = {each.name for each in node.names} & CALLS if node.module == "re" else set()
                assert not strange, f"{place} imports {strange} from re: import re, so that its patterns are found"
            if isinstance(node, ast.Import):
                assert all(each.asname is None for each in node.names if each.name in ("re", "regex")), place
        for constant, inner in _by_constant(tree):
            for node in ast.walk(inner):
                if _is_pattern(node):
                    yield _one(place, module, constant, inner, node)


def _by_constant(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Each statement of a module, with the name of the constant that it sets."""
    for node in tree.body:
        target = (node.targets[0] if isinstance(node, ast.Assign) else
                  node.target if isinstance(node, ast.AnnAssign) else None)
        yield (target.id if isinstance(target, ast.Name) else ""), node


def _is_pattern(node: ast.AST) -> bool:
    return (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CALLS
            and isinstance(node.func.value, ast.Name) and node.func.value.id in ("re", "regex"))


def _one(place: Path, module: str, constant: str, statement: ast.AST, node: Any) -> Found:
    written = node.args[0]
    alone = constant and isinstance(statement, ast.Assign | ast.AnnAssign) and (
        statement.value is node or (isinstance(statement.value, ast.Attribute) and statement.value.value is node))
    name = f"{place}:{constant}" if alone else f"{place}: {ast.unparse(written)}"
    flags = [each.value for each in node.keywords if each.arg == "flags"]
    after = {"compile": 1, "match": 2, "fullmatch": 2, "search": 2, "findall": 2, "finditer": 2}.get(node.func.attr)
    if after is not None and len(node.args) > after:
        flags = [node.args[after]]
    return Found(name, module, written, flags[0] if flags else None)
