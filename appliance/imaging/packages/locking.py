"""`appliance image lock`: resolve the recipe again and write `packages.lock` and `wheels.lock`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from appliance.imaging.packages import debian, lockfile, mirrors, resolve, wheels
from appliance.imaging.packages.downloads import Downloads
from appliance.imaging.recipe.recipe import Recipe

_ABOUT = ("Written by `appliance image lock` from packages.toml and Debian's signed indices.",
          "Superseded packages leave the mirrors: keep the download cache of a release.")


@dataclass(frozen=True)
class Locked:
    """How much was locked."""

    packages: int
    wheels: int


def lock(recipe: Recipe, requirements: Path, downloads: Downloads, given: Mapping[str, str],
         progress: Callable[[str], None]) -> Locked:
    """Resolve and write both lock files. Raises ImageError if an index is forged or a package
    cannot be found."""
    wanted = wheels.read(requirements)
    addresses = mirrors.choose([archive.name for archive in recipe.archives], given)
    epoch = 0
    candidates: list[debian.Candidate] = []
    for archive in recipe.archives:
        progress(f"indices of {archive.name}")
        newest, found = debian.index(archive, addresses[archive.name], recipe.architecture)
        epoch = max(epoch, newest)
        candidates += found
    progress("choosing packages")
    best = resolve.newest(candidates)
    packages = [lockfile.Package(role, item.name, item.version, item.size, item.sha256, item.archive, item.path)
                for role, names in recipe.roles.items() for item in resolve.closure(names, best)]
    progress("wheels")
    chosen = wheels.resolve(recipe, wanted, downloads)
    lockfile.write(recipe.file("packages.lock"), packages, [*_ABOUT, f"suite {recipe.suite}", f"epoch {epoch}"])
    lockfile.write(recipe.file("wheels.lock"), chosen, [
        "Written by `appliance image lock` from requirements-image.lock, without what wheels.toml leaves out."])
    return Locked(len(packages), len(chosen))
