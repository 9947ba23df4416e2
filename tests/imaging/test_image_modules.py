"""What of the appliance is put into an image stands by itself there. No image is built for this: it takes a second."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from appliance.imaging import recipe
from appliance.imaging.disk import rootfs
from appliance.imaging.disk.tree import Tree


def _site(folder: Path) -> Path:
    """The package as an image has it."""
    found = recipe.load()
    rootfs.install_appliance(Tree(folder), found, (), None)
    return folder / found.places["site"]


def test_the_service_starts_from_what_an_image_has(tmp_path: Path) -> None:
    """Its command line, in an interpreter that finds no other part of the package."""
    program = ("import sys; sys.path.insert(0, sys.argv.pop(1)); from appliance.cli.main import main; "
               "main(sys.argv[1:])")
    done = subprocess.run([sys.executable, "-P", "-c", program, _site(tmp_path), "serve", "--help"],
                          capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (0, "") == (done.returncode, done.stderr)
    assert "--listen-port" in done.stdout


def test_no_module_of_an_image_imports_what_is_left_out(tmp_path: Path) -> None:
    """Wherever the import stands: one in a function would end a boot half way."""
    site = _site(tmp_path)
    there = {".".join(path.relative_to(site).with_suffix("").parts).removesuffix(".__init__")
             for path in (site / "appliance").rglob("*.py")}
    left_out = {".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in (
        each.relative_to(Path(recipe.__file__).parents[2]) for each in Path(recipe.__file__).parents[1].rglob("*.py"))
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
