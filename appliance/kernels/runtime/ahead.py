"""Kernel libraries built ahead: what a manifest says, and whether a library fits the sources at
hand.

A library `kernels-<target>.so` lies beside `kernels-<target>.json`. The manifest lists every source
file of the kernel package that the build loaded with its SHA-256, so a file that cannot influence
the kernels does not make them stale. Nothing here needs numba.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from dataclasses import dataclass
from pathlib import Path

from appliance.errors import EngineError
from appliance.kernels.runtime.signature import CSignature
from appliance.kernels.runtime.targets import Target

PREFIX = "kernel_"
"""Symbol of a kernel in objects and libraries: this, then its name."""


SCHEMA = 1
PACKAGE = Path(__file__).parents[1]
SOURCES = ("code", "compiler")  # folders that an image leaves out
PREBUILT = PACKAGE / "prebuilt"
COMPILERS = ("numba", "llvmlite")
_HINT = "build them: appliance kernels build"


@dataclass(frozen=True)
class Library:
    """A library that fits: its file, its kernels' signatures by name (sorted), and digests of its
    bytes in hex."""

    path: Path
    signatures: dict[str, CSignature]
    sha256: str
    sha384: str


def default_path(target: Target, folder: Path = PREBUILT) -> Path:
    """Where the library of a target lies in a folder (the package's own by default)."""
    return folder / f"kernels-{target.name}.so"


def source_digests(names: list[str]) -> dict[str, str]:
    """SHA-256 of source files of the kernel package, by path; a file that does not exist has an
    empty digest."""
    found = {}
    for name in sorted(names):
        path = PACKAGE / name
        plain = ".." not in path.parts and path.is_relative_to(PACKAGE) and path.suffix == ".py" and path.is_file()
        found[name] = hashlib.sha256(path.read_bytes()).hexdigest() if plain else ""
    return found


def compiler_versions() -> dict[str, str]:
    """Versions of numba and llvmlite, as far as they are installed."""
    found = {}
    for name in COMPILERS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def open_library(path: Path, target: Target) -> Library:
    """Check a library against its manifest and the sources at hand; EngineError says what does not
    fit.

    Its code: `kernel-missing` where there is neither file, `kernel-stale` for a library of other
    sources, compilers or targets, `kernel-damaged` for one that is not what was built."""
    manifest = path.with_suffix(".json")
    absent = [each for each in (path, manifest) if not each.is_file()]
    if len(absent) == 2:
        raise EngineError(f"no prebuilt kernels at {path}", hint=_HINT, code="kernel-missing")
    if absent:
        other = path if absent[0] == manifest else manifest
        raise EngineError(f"the kernel library is damaged: {absent[0]} is missing, but {other.name} is there",
                          hint=_HINT, code="kernel-damaged")
    try:
        document = json.loads(manifest.read_bytes())
        wanted = {"schema": SCHEMA, "target": target.name, "machine": target.machine,
                  "llvm_cpu": target.llvm_cpu, "llvm_features": target.llvm_features}
        for key, value in wanted.items():
            if document[key] != value:
                raise EngineError(f"{manifest}: {key} is {document[key]!r}, wanted {value!r}", hint=_HINT,
                                  code="kernel-stale")
        _check_sources(manifest, document["sources"], document["compilers"])
        data = path.read_bytes()
        sha256 = hashlib.sha256(data).hexdigest()
        if sha256 != document["sha256"]:
            raise EngineError(f"{path} is not the library that {manifest.name} describes: expected SHA-256 "
                              f"{document['sha256']}, found {sha256} in {len(data)} bytes", hint=_HINT,
                              code="kernel-damaged")
        signatures = {name: CSignature.parse(text) for name, text in sorted(document["kernels"].items())}
        if not signatures:
            raise ValueError("no kernels")
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise EngineError(f"{manifest} is not a kernel manifest: {error!r}", hint=_HINT,
                          code="kernel-damaged") from error
    return Library(path, signatures, sha256, hashlib.sha384(data).hexdigest())


def _check_sources(manifest: Path, recorded: dict[str, str], compilers: dict[str, str]) -> None:
    if not any((PACKAGE / each).is_dir() for each in SOURCES):
        return  # an image: what it holds is measured, the library with it
    current = source_digests(list(recorded))
    changed = [name for name in recorded if recorded[name] != current[name] or not current[name]]
    if changed or not recorded:
        raise EngineError(f"{manifest}: built from other sources ({', '.join(changed) or 'none named'})", hint=_HINT,
                          code="kernel-stale")
    for name, version in compiler_versions().items():
        if compilers[name] != version:
            raise EngineError(f"{manifest}: built with {name} {compilers[name]}, installed is {version}", hint=_HINT,
                              code="kernel-stale")
