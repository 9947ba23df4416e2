"""`python docs/site/supply.py` writes the table of distributions into docs/supply-chain.md.

Every Debian package and wheel of the image is unpacked as the image's builder does it, pruned, and
counted: files, lines of Python, compiled code. Archives come from the builder's cache, and are
fetched where it lacks them. `--check` writes nothing, and fails where the page is not up to date.

`--peers` resolves other servers of models with uv, and writes `docs/site/peers.json`: how many
distributions each brings, and their bytes. Nothing of them is downloaded or installed.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from email.parser import BytesParser
from pathlib import Path
from typing import Any

from appliance.imaging.disk.tree import Tree, matches
from appliance.imaging.packages import deb, fetching, lockfile, wheels
from appliance.imaging.packages.downloads import Downloads, default_folder
from appliance.imaging.packages.lockfile import Package, Wheel
from appliance.imaging.recipe import recipe as recipes
from appliance.imaging.recipe.recipe import Recipe

ROOT = Path(__file__).parents[2]
PAGE, PEERS = ROOT / "docs/supply-chain.md", ROOT / "docs/site/peers.json"
_MARKS = re.compile(r"(?<=<!-- distributions: begin -->\n).*?(?=<!-- distributions: end -->)", re.DOTALL)
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_SHORT = 44  # characters of a licence's name; longer lines of a copyright file are its text
TAG = "cp" + PYTHON.replace(".", "")
_ELF = b"\x7fELF"
_LICENCE = re.compile(rb"^License: *([^\n]+)", re.MULTILINE)
_CLASSIFIER = re.compile(r"License :: (?:OSI Approved :: )?(.+)")
OTHERS = ("vllm", "llama-cpp-python[server]", "transformers[torch]")


@dataclass(frozen=True)
class Row:
    """One distribution as it is in the image. `packed`: bytes of its archive."""

    name: str
    version: str
    sha256: str
    packed: int
    licence: str
    files: int
    lines: int
    compiled: int
    why: str
    vendors: str


def rows(recipe: Recipe, downloads: Downloads) -> tuple[list[Row], list[Row]]:
    """The wheels, and the Debian packages."""
    reasons = tomllib.loads((ROOT / "image/distributions.toml").read_text("utf-8"))
    _, packages = lockfile.read_packages(recipe.file("packages.lock"))
    locked = lockfile.read_wheels(recipe.file("wheels.lock"))
    inside = [each for each in packages if each.role in ("root", "boot")]
    fetching.fetch_packages(recipe, inside, downloads, {}, lambda *_: None)
    wheels.fetch(recipe, locked, downloads)
    for kind, listed in (("wheel", {each.name for each in locked}), ("debian", {each.name for each in inside})):
        if wrong := listed ^ set(reasons[kind]):
            told = ", ".join(sorted(wrong))
            raise SystemExit(f"image/distributions.toml: {kind}: {told}: no row, or no distribution")
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(Path(folder), dict(recipe.links))
        return ([_wheel(each, recipe, downloads, reasons["wheel"]) for each in locked],
                [_package(each, recipe, tree, downloads, reasons["debian"]) for each in inside])


def _cached(downloads: Downloads, each: Package | Wheel) -> bytes:
    return downloads.get(each.sha256, each.name, lambda: b"")


def _wheel(each: Wheel, recipe: Recipe, downloads: Downloads, reasons: dict[str, Any]) -> Row:
    found = dict(wheels.entries(_cached(downloads, each), each.file))
    metadata = BytesParser().parsebytes(next(data for name, data in found.items() if name.endswith("/METADATA")))
    told = [match[1] for line in metadata.get_all("Classifier", []) if (match := _CLASSIFIER.fullmatch(line))]
    said = metadata.get("License-Expression") or (metadata.get("License") or "").partition("\n")[0]
    kept = {name: data for name, data in found.items() if not matches(name, recipe.prune["wheels"])}
    return _row(each, said or ", ".join(told), kept, reasons)


def _package(each: Package, recipe: Recipe, tree: Tree, downloads: Downloads, reasons: dict[str, Any]) -> Row:
    entries = [entry for entry in deb.entries(_cached(downloads, each), each.name) if entry.link is None]
    told = [entry.data for entry in entries if entry.path.endswith(f"/doc/{each.name}/copyright")]
    names = dict.fromkeys(match.decode("utf-8", "replace").strip() for data in told for match in _LICENCE.findall(data)
                          if len(match) <= _SHORT)
    licence = ", ".join(list(names)[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    kept = {} if each.role == "boot" else {
        entry.path: entry.data for entry in entries if not matches(tree.place(entry.path), recipe.prune["debian"])}
    return _row(each, reasons[each.name].get("licence", licence), kept, reasons)


def _row(each: Package | Wheel, licence: str, kept: dict[str, bytes], reasons: dict[str, Any]) -> Row:
    reason = reasons[each.name]
    lines = sum(data.count(b"\n") for name, data in kept.items() if name.endswith(".py"))
    compiled = sum(len(data) for data in kept.values() if data.startswith(_ELF))
    return Row(each.name, each.version, each.sha256, each.size, licence, len(kept), lines, compiled, reason["why"],
               reason["vendors"])


def text(wheel_rows: list[Row], package_rows: list[Row], peers: dict[str, Any]) -> str:
    """The generated part of the page."""
    return "\n".join([
        "", f"### Python: {len(wheel_rows)} distributions", "", *_table(wheel_rows), "",
        f"### Debian: {len(package_rows)} packages", "",
        "Of kernel and boot stub the files are not counted: they go into one EFI program.", "", *_table(package_rows),
        "",
        *_beside(wheel_rows, package_rows, peers), ""])


def _table(found: list[Row]) -> Iterator[str]:
    yield "| distribution | archive, SHA-256 | licence | files | lines of Python | compiled | audit | vendors | why |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for each in found:
        size = f"{each.compiled / 1e6:.2f} MB" if each.compiled else "–"
        yield (f"| {each.name} {each.version} | `{each.sha256[:16]}…` | {each.licence} | {each.files} | {each.lines} | "
               f"{size} | none known | {each.vendors or '–'} | {each.why} |")
    yield (f"| together | | | {sum(each.files for each in found)} | {sum(each.lines for each in found)} | "
           f"{sum(each.compiled for each in found) / 1e6:.2f} MB | | | |")


def _beside(wheel_rows: list[Row], package_rows: list[Row], peers: dict[str, Any]) -> Iterator[str]:
    yield "### Beside other servers"
    yield ""
    yield (f"Python distributions alone, for Linux on x86-64, as `uv lock` resolved them for Python "
           f"{peers['python']} on {peers['date']}. Bytes are those of the archives.")
    yield ""
    yield "| installation | distributions | archives | the appliance's count, its bytes |"
    yield "|---|---|---|---|"
    count, size = len(wheel_rows), sum(each.packed for each in wheel_rows)
    yield f"| the appliance's image | {count} | {size / 1e6:.1f} MB | |"
    for name, each in peers["installations"].items():
        yield (f"| `{name}` | {each['distributions']} | {each['bytes'] / 1e6:.1f} MB | "
               f"{100 * count / each['distributions']:.0f} %, {100 * size / each['bytes']:.1f} % |")
    whole = size + sum(each.packed for each in package_rows)
    yield ""
    yield (f"With the {len(package_rows)} Debian packages, kernel and libraries among them, the image's archives are "
           f"{whole / 1e6:.1f} MB. The others need an operating system besides, which is not counted.")


def resolved(name: str) -> dict[str, int]:
    """Distributions and bytes of an installation for Linux on x86-64, by uv's lock file for the
    Python that runs this."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "pyproject.toml").write_text(
            f'[project]\nname = "peer"\nversion = "0"\nrequires-python = "=={PYTHON}.*"\ndependencies = ["{name}"]\n'
            "[tool.uv]\nenvironments = [\"sys_platform == 'linux' and platform_machine == 'x86_64'\"]\n")
        uv = shutil.which("uv")
        if uv is None:
            raise SystemExit("uv resolves the other servers: pip install uv")
        subprocess.run([uv, "lock", "-q", "--python", sys.executable], cwd=folder, check=True)
        return counted(Path(folder, "uv.lock").read_text())


def counted(lock: str) -> dict[str, int]:
    """The same from a lock file's text; of each distribution the wheel that would be installed."""
    found = [each for each in tomllib.loads(lock)["package"] if "virtual" not in each.get("source", {})]
    return {"distributions": len(found), "bytes": sum(_size(each) for each in found)}


def _size(package: dict[str, Any]) -> int:
    fit = [each["size"] for each in _fitting(package.get("wheels", []))]
    return int(max(fit) if fit else package.get("sdist", {}).get("size", 0))


def _fitting(listed: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for each in listed:
        python, abi, platform = each["url"].rpartition("/")[2].removesuffix(".whl").rsplit("-", 3)[1:]
        right = "any" in platform or ("x86_64" in platform and "linux" in platform and "musl" not in platform)
        if right and ("py3" in python or TAG in python or "abi3" in abi):
            yield each


def main() -> int:
    """Write the page, check it, or resolve the others; 1 where a check fails."""
    if "--peers" in sys.argv:
        from datetime import UTC, datetime
        PEERS.write_text(json.dumps({"date": f"{datetime.now(UTC):%Y-%m-%d}", "python": PYTHON, "installations": {
            name: resolved(name) for name in OTHERS}}, indent=2) + "\n")
        return 0
    recipe, downloads = recipes.load(), Downloads(default_folder() / "downloads")
    made = text(*rows(recipe, downloads), json.loads(PEERS.read_text("utf-8")))
    page = PAGE.read_text("utf-8")
    written = _MARKS.sub(lambda _: made, page)
    if "--check" in sys.argv:
        return int(written != page)
    PAGE.write_text(written, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
