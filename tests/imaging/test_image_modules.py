"""What of the appliance is put into an image stands by itself there. No image is built for this: it takes a second."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from appliance.imaging.disk import rootfs
from appliance.imaging.disk.tree import Tree
from appliance.imaging.recipe import recipe
from tests.support.halves import RESOLVED
from tests.support.wrong_files import WRONG


def _site(folder: Path) -> Path:
    """The package as an image has it."""
    found = recipe.load()
    rootfs.install_appliance(Tree(folder), found, (), None, b"gate")
    return folder / found.places["site"]


def test_the_service_starts_from_what_an_image_has(tmp_path: Path) -> None:
    """Its command line, in an interpreter that finds no other part of the package."""
    program = ("import sys; sys.path.insert(0, sys.argv.pop(1)); from appliance.cli.main import main; "
               "main(sys.argv[1:])")
    done = subprocess.run([sys.executable, "-P", "-c", program, _site(tmp_path), "serve", "--help"],
                          capture_output=True, text=True, timeout=600, cwd=tmp_path)
    assert (0, "") == (done.returncode, done.stderr)
    assert "--listen-port" in done.stdout


def test_no_module_of_an_image_imports_what_is_left_out(tmp_path: Path) -> None:
    """Wherever the import stands: one in a function would end a boot half way."""
    site = _site(tmp_path)
    there = {".".join(path.relative_to(site).with_suffix("").parts).removesuffix(".__init__")
             for path in (site / "appliance").rglob("*.py")}
    left_out = {".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in (
        each.relative_to(Path(recipe.__file__).parents[3]) for each in Path(recipe.__file__).parents[2].rglob("*.py"))
        } - there
    assert {"appliance.imaging.disk.rootfs", "appliance.cli.verify"} <= left_out
    assert {"appliance", "appliance.cli.serve", "appliance.engine.forward.forward"} <= there
    missing = []
    for path in (site / "appliance").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level and node.module:
                names = [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
            missing += [f"{path.relative_to(site)}: {name}" for name in names if name in left_out]
    assert [] == missing


ENTRIES = ("appliance.__main__", "appliance.cli.serve", "appliance.guest.init", "appliance.boot.placement.read_disk",
           "appliance.keys.release.process")


def _imported(path: Path) -> set[str]:
    """Names that a module imports, wherever the import stands, but for those that only types need."""
    found: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(path.read_bytes())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
        waiting += ast.iter_child_nodes(node)
    return found


def test_every_module_of_an_image_is_reached(tmp_path: Path) -> None:
    """From the programs that an image starts: what is there unreached is trusted, measured and never read."""
    site = _site(tmp_path)
    there = {".".join(path.relative_to(site).with_suffix("").parts).removesuffix(".__init__"): path
             for path in (site / "appliance").rglob("*.py")}
    waiting, reached = list(ENTRIES), set()
    while waiting:
        name = waiting.pop()
        while name:  # a module's packages are imported before it
            if name in there and name not in reached:
                reached.add(name)
                waiting += {*_imported(there[name]), *RESOLVED.get(name, ())}
            name = name.rpartition(".")[0]
    assert set() == set(there) - reached


WRONG_FILES = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from appliance.errors import ModelError
from appliance.models.catalogue import ModelFile
for path in sorted(Path(sys.argv[2]).iterdir()):
    try:
        ModelFile(path).supported
    except ModelError as error:
        print(path.name, type(error).__name__)
"""


def test_an_image_refuses_wrong_files_without_their_names(tmp_path: Path) -> None:
    """It has no table of kinds of files. What a desk names is refused there as well."""
    site, files = _site(tmp_path / "site"), tmp_path / "files"
    assert not (site / "appliance/mistakes").exists()
    files.mkdir()
    for number, content in enumerate(each[0] for each in WRONG.values()):
        (files / f"{number:03}").write_bytes(content)
    done = subprocess.run([sys.executable, "-P", "-c", WRONG_FILES, site, files], capture_output=True, text=True,
                          timeout=600, check=True)
    refused = {line.split()[0] for line in done.stdout.splitlines()}
    assert {path.name for path in files.iterdir()} == refused
