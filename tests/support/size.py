"""`python -m tests.support.size [--json]`: how big the house is that ships, and which names stand for several things.

The modules that ship are those of the package in an image. `tests/project/test_size.py` bounds each
number.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any

from appliance.imaging.disk import rootfs
from appliance.imaging.disk.tree import Tree
from appliance.imaging.recipe import recipe
from tests.support import code_lines

ROOT = Path(__file__).parents[2]
USUAL = {("numpy", "np"), ("numba", "nb")}  # names that everybody gives these imports
SCHEMAS = ROOT / "appliance/policy/schema"


def shipped() -> dict[str, Path]:
    """The modules of an image, by name: their files in the checkout."""
    with tempfile.TemporaryDirectory() as folder:
        built = recipe.load()
        rootfs.install_appliance(Tree(Path(folder)), built, (), None, b"gate")
        site = Path(folder) / built.places["site"]
        files = [path.relative_to(site) for path in sorted((site / "appliance").rglob("*.py"))]
    return {name_of(path): ROOT / path for path in files}


def name_of(path: Path) -> str:
    """The dotted name of a module's file."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def whole() -> dict[str, Path]:
    """All modules of the package."""
    return {name_of(path.relative_to(ROOT)): path for path in sorted((ROOT / "appliance").rglob("*.py"))}


def measure() -> dict[str, Any]:
    """Each number, and what it was counted from."""
    modules = shipped()
    parsed = {name: ast.parse(path.read_bytes()) for name, path in whole().items()}
    trees = {name: parsed[name] for name in modules}
    code = {name: code_lines.count(path, trees[name]) for name, path in modules.items()}
    rooms = Counter[str]()
    for name, lines in code.items():
        rooms[".".join(name.split(".")[:2])] += lines
    biggest = rooms.most_common(1)[0]
    classes = {(name, node.name): (node.end_lineno or 0) - node.lineno + 1
               for name, tree in trees.items() for node in tree.body if isinstance(node, ast.ClassDef)}
    homes = defaultdict[str, list[str]](list)
    for name, class_name in classes:
        homes[class_name].append(name)
    first, second = (json.loads((SCHEMAS / f"schema_{number}.json").read_text()) for number in (1, 2))
    return {
        "modules": len(modules), "lines": sum(len(path.read_text().splitlines()) for path in modules.values()),
        "code": sum(code.values()), "biggest room": biggest[0], "its share": round(biggest[1] / sum(code.values()), 3),
        "class names in several modules": {name: at for name, at in sorted(homes.items()) if len(at) > 1},
        "renamed imports": sorted(f"{name}: {text}" for name, tree in trees.items() for text in renamed(tree)),
        "classes over 250 lines": {f"{name}.{of}": size for (name, of), size in classes.items() if size > 250},
        "policy fields of schema 2 alone": len(set(second) - set(first)),
        "circles": circles(parsed),
    }


def renamed(tree: ast.Module) -> Iterator[str]:
    """Imports of a module under another name than their own."""
    for node in code_lines.statements(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for each in node.names:
                if each.asname not in (None, each.name) and (each.name, each.asname) not in USUAL:
                    yield f"{each.name} as {each.asname}"


def circles(trees: Mapping[str, ast.Module]) -> list[list[str]]:
    """Modules that import each other, directly or by way of others, for types too (Tarjan's algorithm)."""
    graph = {name: set(_targets(tree, trees)) - {name} for name, tree in trees.items()}
    index, low, found = dict[str, int](), dict[str, int](), list[list[str]]()
    stack = list[str]()

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for target in graph[name]:
            if target not in index:
                visit(target)
            if target in stack:
                low[name] = min(low[name], low[target])
        if low[name] == index[name]:
            at = stack.index(name)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    sys.setrecursionlimit(10_000)
    for name in graph:
        if name not in index:
            visit(name)
    return found


def _targets(tree: ast.Module, modules: Container[str]) -> Iterator[str]:
    """Modules that a module names in its imports. A package is one where something of its own is imported."""
    for node in code_lines.statements(tree):
        names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [inner if (inner := f"{node.module}.{each.name}") in modules else node.module
                     for each in node.names]
        yield from (name for name in names if name in modules)


def counts(found: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers for what is listed."""
    return {name: len(value) if isinstance(value, list | dict) else value for name, value in found.items()}


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.size", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="with what each number was counted from")
    found = measure()
    if parser.parse_args().json:
        print(json.dumps(found, indent=1))
    else:
        print(*(f"{name:34}{value}" for name, value in counts(found).items()), sep="\n")


if __name__ == "__main__":
    main()
