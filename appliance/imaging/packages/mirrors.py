"""Where this machine takes Debian packages from: its own apt configuration. No address is in the
project.

An archive is recognised by the last part of its address, as Debian's mirrors have it: `debian`,
`debian-security`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from appliance.errors import ImageError

APT = Path("/etc/apt")


def configured(folder: Path = APT) -> dict[str, str]:
    """Archive name -> address, of all `deb` sources in apt's configuration; the first of a name
    counts."""
    found: dict[str, str] = {}
    for path in [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*"))]:
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        addresses = _deb822(text) if path.suffix == ".sources" else _one_line(text)
        for address in addresses:
            found.setdefault(address.rstrip("/").rpartition("/")[2], address.rstrip("/"))
    return found


def choose(names: Iterable[str], given: Mapping[str, str], folder: Path = APT) -> dict[str, str]:
    """Return an address for each archive: as given, else as apt has it. Raises ImageError, which
    names what is missing.
    """
    known = {**configured(folder), **given}
    missing = [name for name in names if name not in known]
    if missing:
        raise ImageError(f"no mirror of {', '.join(missing)} in {folder}", code="mirror-unknown",
                         hint=f"name one: --mirror {missing[0]}=https://HOST/{missing[0]}")
    return {name: known[name].rstrip("/") for name in names}


def _deb822(text: str) -> list[str]:
    addresses = []
    for stanza in re.split(r"\n\s*\n", text):
        fields = dict(re.findall(r"^([A-Za-z-]+):[ \t]*(.*(?:\n[ \t].*)*)", stanza, re.M))
        if "deb" in fields.get("Types", "").split() and fields.get("Enabled", "yes").strip() != "no":
            addresses += fields.get("URIs", "").split()
    return addresses


def _one_line(text: str) -> list[str]:
    return re.findall(r"^deb[ \t]++(?:\[[^\]\n]*+\][ \t]++)?(\S++)", text, re.M)
