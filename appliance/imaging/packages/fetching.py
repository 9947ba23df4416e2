"""Bring packages of a lock file into the cache."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from appliance.imaging.packages import mirrors
from appliance.imaging.packages.downloads import Downloads, fetch
from appliance.imaging.packages.lockfile import Package
from appliance.imaging.recipe.recipe import Recipe
from appliance.imaging.recipe.stages import Progress


def fetch_packages(recipe: Recipe, packages: Iterable[Package], downloads: Downloads, given: Mapping[str, str],
                   progress: Progress) -> None:
    """Fetch what the cache lacks. Raises ImageError if a mirror has it no longer, or has something
    else.
    """
    missing = [package for package in packages if not downloads.has(package.sha256)]
    if not missing:
        return
    addresses = mirrors.choose([archive.name for archive in recipe.archives], given)
    total, done = sum(package.size for package in missing), 0
    for package in missing:
        progress("packages", done, total)
        address = f"{addresses[package.archive]}/{package.path}"
        downloads.get(package.sha256, package.name, lambda address=address: fetch(address))  # type: ignore[misc]
        done += package.size
