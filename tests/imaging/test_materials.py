"""Suppliers, licences and parts inside: each locked archive has them, and the wheels themselves are the judges."""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from license_expression import get_spdx_licensing
from packageurl import PackageURL

from appliance.imaging.packages import lockfile
from appliance.imaging.packages.downloads import default_folder
from appliance.imaging.packages.lockfile import Wheel
from appliance.imaging.papers import materials
from appliance.imaging.papers.materials import UNKNOWN, VendoredPart
from tests.support.expected import ROOT
from tests.support.require import absent

WHEELS = lockfile.read_wheels(ROOT / "image/wheels.lock")
_, PACKAGES = lockfile.read_packages(ROOT / "image/packages.lock")
CRATE = re.compile(rb"index\.crates\.io-[0-9a-f]{1,32}/([a-zA-Z0-9_-]{1,64})-"
                   rb"([0-9]{1,9}\.[0-9.]{1,20}[0-9a-z.+-]{0,40})/")
PRUNED = {"pyyaml"}  # its one compiled module is not in the image (image/prune.toml)


@cache
def _known() -> materials.Materials:
    return materials.load()


def _parts(wheel: Wheel) -> list[VendoredPart]:
    return list(_known().parts(f"pypi/{wheel.name}", wheel.version))


@cache
def _archive(wheel: Wheel) -> zipfile.ZipFile:
    path = default_folder() / "downloads" / wheel.sha256
    if not path.is_file():
        absent(f"{wheel.file} is not in the cache of downloads; it comes with: appliance image build")
    return zipfile.ZipFile(path)


def _components(parts: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for each in parts:
        yield each
        yield from _components(each.get("components", []))


def test_every_locked_archive_has_a_supplier_and_a_licence() -> None:
    """By its own row."""
    for package in PACKAGES:
        source = _known().package(package.name)
        assert (source.supplier, True) == ("Debian", source.licence is not None), package.name
    for wheel in WHEELS:
        source = _known().wheel(wheel.name)
        assert source.licence, wheel.name
        assert source.supplier != UNKNOWN, wheel.name
    assert UNKNOWN == _known().wheel("of-another-image").supplier


def test_every_part_has_what_ntia_asks_for() -> None:
    """Supplier, name, version and a package URL, which the purl project's library reads; the licence is SPDX's."""
    licensing = get_spdx_licensing()
    parts = [each for inside in _known().inside.values() for each in inside]
    assert len(parts) > 200
    for part in parts:
        assert part.source.supplier
        assert part.name
        assert part.version
        assert part.purl == PackageURL.from_string(part.purl).to_string()
        assert part.sha256 is None or re.fullmatch(r"[0-9a-f]{64}", part.sha256)
    found = {each.source.licence for each in parts} | set(_known().licences.values()) | {
        each.licence for each in _known().wheels.values()}
    for licence in sorted(map(str, found)):
        assert [] == licensing.validate(licence).errors, licence


def test_parts_are_of_locked_versions() -> None:
    """A carrier that was locked anew needs new rows."""
    locked = {(f"pypi/{each.name}", each.version) for each in WHEELS} | {
        (f"deb/{each.name}", each.version) for each in PACKAGES}
    assert set(_known().inside) <= locked


@pytest.mark.parametrize("wheel", WHEELS, ids=[each.name for each in WHEELS])
def test_what_a_wheel_tells_of_itself_is_in_the_rows(wheel: Wheel) -> None:
    """Its own bills of materials (PEP 770), libraries that were put beside it, crates that its binaries name."""
    archive = _archive(wheel)
    rows = {(each.name, each.version): each for each in _parts(wheel)}
    missing = []
    for name in archive.namelist():
        if "/sboms/" in name and name.endswith(".json"):
            bill = json.loads(archive.read(name))
            for each in _components(bill["components"]):
                row = rows.get((each["name"], each["version"]))
                missing += [] if row else [f"{each['name']} {each['version']}"]
                digests = {item["content"] for item in each.get("hashes", [])}
                assert row is None or not digests or row.sha256 in digests, each["name"]
        elif ".libs/" in name and not name.endswith("/"):
            digest = hashlib.sha256(archive.read(name)).hexdigest()
            missing += [] if digest in {each.sha256 for each in rows.values()} else [name]
        elif name.endswith(".so"):
            crates = {(found[1].decode(), found[2].decode()) for found in CRATE.finditer(archive.read(name))}
            missing += [f"{crate} {version}" for crate, version in sorted(crates - set(rows))]
    assert [] == missing


def test_compiled_wheels_have_parts() -> None:
    """Whatever is compiled carries other code, and somebody looked at it."""
    for wheel in WHEELS:
        if any(name.endswith(".so") for name in _archive(wheel).namelist()) and wheel.name not in PRUNED:
            assert _parts(wheel), wheel.name


def test_openssl_is_the_one_that_computes() -> None:
    """The version that the wheel's binary says of itself."""
    (wheel,) = [each for each in WHEELS if each.name == "cryptography"]
    (row,) = [each for each in _parts(wheel) if each.name == "openssl" and "cargo" not in each.purl]
    archive = _archive(wheel)
    (binary,) = [name for name in archive.namelist() if name.endswith("_rust.abi3.so")]
    assert f"OpenSSL {row.version} ".encode() in archive.read(binary)


def test_a_recipe_without_them_is_named(tmp_path: Path) -> None:
    """The file that is absent, or damaged."""
    with pytest.raises(Exception, match=r"suppliers\.toml"):
        materials.load(tmp_path)
    (tmp_path / "suppliers.toml").write_bytes((ROOT / "image/suppliers.toml").read_bytes())
    (tmp_path / "inside.jsonl").write_text('{"in": "pypi/numpy"}\n')
    with pytest.raises(Exception, match=r"inside\.jsonl"):
        materials.load(tmp_path)
