"""The root file system's tree: Debian packages, wheels, the appliance, kernels, the policy, and the
layout's files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from appliance.codec.canonical import canonical
from appliance.imaging.disk.tree import Tree, matches
from appliance.imaging.packages import deb, wheels
from appliance.imaging.packages.downloads import Downloads
from appliance.imaging.packages.lockfile import Package, Wheel
from appliance.imaging.recipe.recipe import Recipe

_PACKAGE = Path(__file__).parents[2]


# A simulated policy may listen on the guest's loopback in plain text; this lets a forwarded port
# reach it there.
_DEVELOPMENT = {"net.ipv4.conf.all.route_localnet": "1"}


def begin(folder: Path, recipe: Recipe, *, development: bool = False) -> Tree:
    """Return an empty tree with the layout's folders, links and files; `development`: for a
    simulated policy."""
    tree = Tree(folder, dict(recipe.links))
    for path in recipe.directories:
        tree.folder(path)
    for path, text in sorted(recipe.files.items()):
        tree.file(path, text.encode())
    settings = {**(_DEVELOPMENT if development else {}), **recipe.sysctl}
    sysctl = "".join(f"{key} = {value}\n" for key, value in settings.items())
    tree.file("etc/appliance/sysctl.conf", sysctl.encode())
    return tree


def unpack(tree: Tree, packages: Iterable[Package], downloads: Downloads, drop: tuple[str, ...] = ()) -> None:
    """Put packages that the cache holds into a tree, without what the patterns name."""
    for package in packages:
        for entry in deb.entries(_cached(downloads, package.sha256, package.name), package.name):
            if not matches(tree.place(entry.path), drop):
                program = entry.executable and entry.data.startswith(b"\x7fELF")  # a script's bit would start nothing
                tree.add(entry.path, entry.data, entry.link, program)


def install_wheels(tree: Tree, recipe: Recipe, locked: Iterable[Wheel], downloads: Downloads) -> None:
    """Unzip wheels into the site folder."""
    for wheel in locked:
        for path, data in wheels.entries(_cached(downloads, wheel.sha256, wheel.file), wheel.file):
            if not matches(path, recipe.prune["wheels"]):
                tree.file(f"{recipe.places['site']}/{path}", data)


def install_appliance(tree: Tree, recipe: Recipe, kernels: Iterable[Path], policy: bytes | None,
                      gate: bytes) -> None:
    """The package itself, kernel libraries with their manifests, and the policy if it is baked in.
    The gate's digest is one of the package's files, so the digest of these, which evidence shows,
    covers it."""
    site = recipe.places["site"]
    for path in sorted(_PACKAGE.rglob("*")):
        name = path.relative_to(_PACKAGE.parent).as_posix()
        wanted = matches(name, recipe.prune["keep"]) or not matches(name, recipe.prune["appliance"])
        if path.is_file() and wanted and "__pycache__" not in path.parts:
            tree.file(f"{site}/{name}", path.read_bytes())
    for path in kernels:
        tree.file(f"{site}/appliance/kernels/prebuilt/{path.name}", path.read_bytes())
    digest = canonical({"sha256": hashlib.sha256(gate).hexdigest()})
    tree.file(f"{site}/appliance/guest/gate.json", digest)
    if policy is not None:
        tree.file(recipe.places["policy"], policy)


def _cached(downloads: Downloads, sha256: str, name: str) -> bytes:
    def absent() -> bytes:
        raise FileNotFoundError(f"{name} is not in {downloads.folder}")

    return downloads.get(sha256, name, absent)
