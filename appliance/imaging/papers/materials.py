"""Suppliers and licences of packages and wheels, and the parts that these carry inside.

`image/suppliers.toml` and `image/inside.jsonl` have them, as their makers tell it. A part counts
for the one version of its carrier that it was read from.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from appliance.errors import ImageError
from appliance.imaging.recipe.recipe import FOLDER

UNKNOWN = "unknown"
SUPPLIERS, INSIDE = "suppliers.toml", "inside.jsonl"


@dataclass(frozen=True)
class Source:
    """Who supplies something, and under which licence, as an SPDX expression; None if not known."""

    supplier: str
    licence: str | None
    url: str | None = None


@dataclass(frozen=True)
class Part:
    """A part that a package or a wheel carries inside. `sha256`: of its own archive or file, in
    hex; None if its maker names none."""

    name: str
    version: str
    purl: str
    source: Source
    sha256: str | None


@dataclass(frozen=True)
class Materials:
    """The two files. Carriers are named by kind and name, such as `pypi/numpy`, and version."""

    debian: Source
    licences: Mapping[str, str]  # pattern of Debian packages -> licence
    wheels: Mapping[str, Source]
    inside: Mapping[tuple[str, str], Sequence[Part]]

    def package(self, name: str) -> Source:
        """The source of a Debian package."""
        found = next((licence for pattern, licence in self.licences.items() if fnmatchcase(name, pattern)), None)
        return Source(self.debian.supplier, found, self.debian.url)

    def wheel(self, name: str) -> Source:
        """The source of a wheel."""
        return self.wheels.get(name, Source(UNKNOWN, None))

    def parts(self, carrier: str, version: str) -> Sequence[Part]:
        """The known parts of one version of a carrier."""
        return self.inside.get((carrier, version), ())


def load(folder: Path = FOLDER) -> Materials:
    """Read both files. ImageError names the one that cannot be read."""
    try:
        table = tomllib.loads((folder / SUPPLIERS).read_text("utf-8"))
        debian = table["debian"]
        wheels = {name: Source(row["supplier"], row["licence"]) for name, row in table["wheels"].items()}
        source = Source(debian["supplier"], None, debian["url"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ImageError(f"{folder / SUPPLIERS}: {error}", hint="run from a checkout") from None
    return Materials(source, debian["licences"], wheels, _inside(folder / INSIDE))


def _inside(path: Path) -> dict[tuple[str, str], list[Part]]:
    found: dict[tuple[str, str], list[Part]] = {}
    try:
        for line in path.read_text("utf-8").splitlines():
            row = json.loads(line)
            found.setdefault((row["in"], row["of"]), []).append(Part(
                row["name"], row["version"], row["purl"], Source(row["supplier"], row["licence"]), row.get("sha256")))
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ImageError(f"{path}: {error}", hint="run from a checkout") from None
    return found
