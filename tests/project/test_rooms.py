"""The rules of the rooms: no circles, few modules each, a rule in each `__init__`; and the table of what tests cost."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from graphlib import TopologicalSorter
from pathlib import Path

from tests.support.costs import COSTS, MEASURED
from tests.support.halves import RESOLVED

ROOT = Path(__file__).parents[2]
MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
           for path in (ROOT / "appliance").rglob("*.py")}

# One file a verb; the nodes and operations of one language; a door of its own.
LARGE = {"appliance.cli", "appliance.text.jinja", "appliance.client"}


def _room(name: str) -> str:
    return name if MODULES[name].name == "__init__.py" else name.rpartition(".")[0]


def _imports(name: str, *, typed: bool = False) -> set[str]:
    """Modules of ours that a module imports when it runs, wherever the import stands; `typed`: for types alone, too."""
    found, waiting = set(RESOLVED.get(name, ())), [ast.parse(MODULES[name].read_bytes())]  # type: set[str], list[ast.AST]
    while waiting:
        node = waiting.pop()
        if not typed and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{each.name}" for each in node.names}
            found |= {each if each in MODULES else node.module for each in names}
        waiting += ast.iter_child_nodes(node)
    return found & set(MODULES)


def test_no_room_imports_itself_on_a_way_around() -> None:
    """TopologicalSorter raises CycleError and names the circle. The package's own room has errors and no work."""
    rooms: dict[str, set[str]] = defaultdict(set)
    for name in MODULES:
        rooms[_room(name)] |= {_room(each) for each in _imports(name)} - {_room(name), "appliance"}
    rooms.pop("appliance")
    assert len(list(TopologicalSorter(rooms).static_order())) >= len(rooms)


def test_a_room_has_at_most_twelve_modules() -> None:
    """More than that is two rooms."""
    sizes = Counter(_room(name) for name, path in MODULES.items() if path.name != "__init__.py")
    assert {} == {room: size for room, size in sizes.items() if size > 12 and room not in LARGE}


def _door(room: str) -> set[str]:
    """The modules and names that a room's `__init__` lists in `__all__`."""
    for node in ast.parse(MODULES[room].read_bytes()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


# Kernels' sources are no room's neighbours: a compiler reads them. The package's own modules are everybody's.
OPEN = ("appliance.kernels.code", "appliance.kernels.compiler")


def test_nobody_reaches_past_a_door() -> None:
    """A module is imported from another room only if its own room lists it; and no room lists a module for nobody."""
    doors = {room: _door(room) for room, path in MODULES.items()
             if path.name == "__init__.py" and room != "appliance" and not room.startswith(OPEN)}
    used: dict[str, set[str]] = defaultdict(set)
    for name in MODULES:
        for each in _imports(name, typed=True):
            room = _room(each)
            if each != room and room != _room(name) and room in doors:
                used[room].add(each.rpartition(".")[2])
    assert {} == {room: names - doors[room] for room, names in used.items() if names - doors[room]}
    modules = {room: {name.rpartition(".")[2] for name in MODULES if _room(name) == room != name} for room in doors}
    assert {} == {room: left for room, names in doors.items() if (left := (names & modules[room]) - used[room])}


def test_a_room_says_its_rule() -> None:
    """In the first line of its `__init__`."""
    rooms = {path.parent: path for path in MODULES.values() if path.name == "__init__.py"}
    assert {path.parent for path in MODULES.values()} == set(rooms)
    assert [] == [str(path) for path in rooms.values() if not ast.get_docstring(ast.parse(path.read_bytes()))]


def test_the_table_of_costs_names_files() -> None:
    """A name without a file leaves nothing out; `python -m tests.support.costs` writes the table again."""
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")}
    assert set() == (set(COSTS) | MEASURED) - files


def test_a_class_name_means_one_thing_in_attestation_and_client() -> None:
    """A `Verdict` or a `Quote` is the same wherever these rooms speak of it. Private names are their module's own."""
    names = Counter(node.name for name, path in MODULES.items()
                    if name.startswith(("appliance.attestation.", "appliance.client."))
                    for node in ast.parse(path.read_bytes()).body
                    if isinstance(node, ast.ClassDef) and not node.name.startswith("_"))
    assert [] == [name for name, count in names.items() if count > 1]
