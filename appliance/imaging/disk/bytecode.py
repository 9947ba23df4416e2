"""Compile the image's Python ahead of time, by the image's own interpreter, so that the bytes can
be reproduced.

Unchecked-hash files depend on the source alone: no time stamp, and no path of the build machine.
"""

from __future__ import annotations

from appliance.imaging.disk.toolchain import Toolchain
from appliance.imaging.disk.tree import FILE, FOLDER, Tree


def compile_tree(tree: Tree, python: str, folders: list[str]) -> int:
    """Compile every source below these folders of the tree; returns how many files were made."""
    runner = Toolchain(tree.root)
    # One process: with several, the order of interned names differs from run to run.
    runner.run(python, "-s", "-P", "-S", "-B", "-m", "compileall", "-q", "-f", "-j", "1", "-o", "0",
               "--invalidation-mode", "unchecked-hash", "-s", str(tree.root), "-p", "/",
               *(str(tree.root / folder) for folder in folders),
               environment={"PYTHONHASHSEED": "0", "PYTHONHOME": str(tree.root / "usr")})
    made = 0
    for path in tree.root.rglob("__pycache__"):
        path.chmod(FOLDER)
        for compiled in path.iterdir():
            compiled.chmod(FILE)
            made += 1
    return made
