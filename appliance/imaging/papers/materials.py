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
class Supply:
    """The supplier of something, and its licence as an SPDX expression; None if not known."""

    supplier: str
    licence: str | None
    url: str | None = None


@dataclass(frozen=True)
class VendoredPart:
    """A part that a package or a wheel carries inside. `sha256`: of its own archive or file, in
    hex; None if its maker names none."""

    name: str
    version: str
    purl: str
    source: Supply
    sha256: str | None


@dataclass(frozen=True)
class Materials:
    """The two files. Carriers are named by kind and name, such as `pypi/numpy`, and version."""

    debian: Supply
    licences: Mapping[str, str]  # pattern of Debian packages -> licence
    wheels: Mapping[str, Supply]
    inside: Mapping[tuple[str, str], Sequence[VendoredPart]]

    def package(self, name: str) -> Supply:
        """Return the source of a Debian package."""
        found = next((licence for pattern, licence in self.licences.items() if fnmatchcase(name, pattern)), None)
        return Supply(self.debian.supplier, found, self.debian.url)

    def wheel(self, name: str) -> Supply:
        """Return the source of a wheel."""
        return self.wheels.get(name, Supply(UNKNOWN, None))

    def parts(self, carrier: str, version: str) -> Sequence[VendoredPart]:
        """Return the known parts of one version of a carrier."""
        return self.inside.get((carrier, version), ())


def load(folder: Path = FOLDER) -> Materials:
    """Read both files. Raises ImageError, which names the file that cannot be read."""
    try:
        table = tomllib.loads((folder / SUPPLIERS).read_text("utf-8"))
        debian = table["debian"]
        wheels = {name: Supply(row["supplier"], row["licence"]) for name, row in table["wheels"].items()}
        source = Supply(debian["supplier"], None, debian["url"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ImageError(f"{folder / SUPPLIERS}: {error}", hint="run from a checkout") from None
    return Materials(source, debian["licences"], wheels, _inside(folder / INSIDE))


def _inside(path: Path) -> dict[tuple[str, str], list[VendoredPart]]:
    found: dict[tuple[str, str], list[VendoredPart]] = {}
    try:
        for line in path.read_text("utf-8").splitlines():
            row = json.loads(line)
            found.setdefault((row["in"], row["of"]), []).append(VendoredPart(
                row["name"], row["version"], row["purl"], Supply(row["supplier"], row["licence"]), row.get("sha256")))
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ImageError(f"{path}: {error}", hint="run from a checkout") from None
    return found
