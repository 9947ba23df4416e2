"""The recipe: what an image consists of, from the TOML files in `image/`, one purpose each.

A key that is not known is an error. Nothing here reads the machine or the network.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.errors import ImageError

FOLDER = Path(__file__).parents[3] / "image"
ROLES = ("root", "boot", "tools")  # of the running system, of its start, of its build


@dataclass(frozen=True)
class Archive:
    """A Debian archive: its suites, and the primary fingerprints of which one must have signed
    each."""

    name: str
    suites: tuple[str, ...]
    signers: tuple[str, ...]


@dataclass(frozen=True)
class Role:
    """Packages for one purpose, and dependencies that are not followed."""

    packages: tuple[str, ...]
    leave_out: tuple[str, ...]


@dataclass(frozen=True)
class Recipe:
    """All of `image/` but the lock files."""

    folder: Path
    suite: str
    architecture: str
    archives: tuple[Archive, ...]
    roles: Mapping[str, Role]
    wheels_python: str
    wheels_platforms: tuple[str, ...]
    wheels_leave_out: Mapping[str, str]  # distribution -> reason
    links: Mapping[str, str]
    directories: tuple[str, ...]
    files: Mapping[str, str]
    places: Mapping[str, str]
    prune: Mapping[str, tuple[str, ...]]  # kind of source -> patterns
    modules_required: tuple[str, ...]
    modules_optional: tuple[str, ...]
    modules_vsock: tuple[str, ...]  # optional too, where a policy may want them
    modules_gce: tuple[str, ...]  # optional too, where a policy is for Google's machines
    words: tuple[str, ...]
    sysctl: Mapping[str, str]

    def file(self, name: str) -> Path:
        """Return a file of the recipe, by name."""
        return self.folder / name


def load(folder: Path = FOLDER) -> Recipe:
    """Read the recipe; ImageError names file and key."""
    packages = _Table(folder / "packages.toml")
    wheels = _Table(folder / "wheels.toml")
    layout = _Table(folder / "layout.toml")
    prune = _Table(folder / "prune.toml")
    modules = _Table(folder / "modules.toml")
    cmdline = _Table(folder / "cmdline.toml")
    recipe = Recipe(
        folder=folder,
        suite=packages.take("suite", str), architecture=packages.take("architecture", str),
        archives=tuple(Archive(name, tuple(entry["suites"]), tuple(entry["signers"]))
                       for name, entry in packages.take("archive", dict).items()),
        roles={name: Role(tuple(entry["packages"]), tuple(entry["leave_out"]))
               for name, entry in packages.take("role", dict).items()},
        wheels_python=wheels.take("python", str), wheels_platforms=tuple(wheels.take("platforms", list)),
        wheels_leave_out=wheels.take("leave_out", dict),
        links=layout.take("links", dict), directories=tuple(layout.take("directories", dict)["paths"]),
        files=layout.take("files", dict), places=layout.take("places", dict),
        prune={kind: tuple(prune.take(kind, list)) for kind in ("debian", "wheels", "appliance", "keep")},
        modules_required=tuple(modules.take("required", list)),
        modules_optional=tuple(modules.take("optional", list)),
        modules_vsock=tuple(modules.take("vsock", list)), modules_gce=tuple(modules.take("gce", list)),
        words=tuple(cmdline.take("words", list)),
        sysctl=_Table(folder / "sysctl.toml").rest(),
    )
    for table in (packages, wheels, layout, prune, modules, cmdline):
        table.end()
    if set(recipe.roles) != set(ROLES):
        raise ImageError(f"{folder / 'packages.toml'}: roles are {', '.join(recipe.roles)}, not {', '.join(ROLES)}")
    return recipe


class _Table:
    """One TOML file of which every key must be taken."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._left: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ImageError(f"{path}: {error.strerror}", hint="run from a checkout, or name the recipe's folder with "
                             "--recipe") from None
        except ValueError as error:
            raise ImageError(f"{path}: {error}") from None

    def take(self, key: str, kind: type) -> Any:
        """Return the value of a key that must be there and of this type."""
        value = self._left.pop(key, None)
        if not isinstance(value, kind):
            raise ImageError(f"{self._path}: {key} is {type(value).__name__}, expected {kind.__name__}")
        return value

    def rest(self) -> dict[str, Any]:
        """Take all keys that are left."""
        left, self._left = self._left, {}
        return left

    def end(self) -> None:
        """Refuse what nobody took."""
        if self._left:
            raise ImageError(f"{self._path}: unknown key {', '.join(self._left)}")
