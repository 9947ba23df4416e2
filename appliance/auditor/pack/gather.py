"""A pack from an operator's files. Nothing in them is judged but that it is of its kind.

Content stays outside: a receipt loses its answer and its opening, records lose their keys, and of a
folder of collateral only collateral is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from appliance.attestation.case import reading
from appliance.attestation.x509.judging.collateral import MAX_FILES, Collateral
from appliance.auditor import bundle, held, receipts
from appliance.auditor.archive.members import BY_NAME, MOST_OF_A_KIND, place
from appliance.auditor.claims import controls
from appliance.auditor.claims.case import stripped
from appliance.auditor.report import leakage
from appliance.codec.printable import quantity
from appliance.errors import AuditError
from appliance.signed import releases
from appliance.transparency.reading import signed_head


@dataclass(frozen=True)
class Files:
    """The operator's files, each None or empty where there is none. `signature` and `approvals` are
    also looked for beside measurements and policy."""

    policy: Path | None = None
    approvals: Path | None = None
    measurements: Path | None = None
    signature: Path | None = None
    sbom: Path | None = None
    provenance: Path | None = None
    releases: Path | None = None  # a folder, as `appliance image release` writes it
    bundles: Sequence[Path] = ()
    evidence: Sequence[Path] = ()
    collateral: Path | None = None
    health: Path | None = None
    log: Path | None = None
    extracts: Sequence[Path] = ()
    checkpoints: Sequence[Path] = ()
    receipts: Sequence[Path] = ()
    controls: Sequence[Path] = ()
    leakage: Sequence[Path] = ()


def members(files: Files) -> dict[str, bytes]:
    """Return the members of a pack, without its report. Raises AuditError, which names a file that
    cannot be taken."""
    found: dict[str, bytes] = {}
    ones = {"policy": files.policy, "approvals": files.approvals or _beside(files.policy, ".approvals"),
            "measurements": files.measurements, "signature": files.signature or _beside(files.measurements, ".sig"),
            "sbom": files.sbom, "provenance": files.provenance, "health": files.health, "log": files.log,
            "releases": _in(files.releases, releases.LOG), "release-head": _in(files.releases, releases.HEAD)}
    for kind, path in ones.items():
        if path is not None:
            found[BY_NAME[kind].place] = _content(path, BY_NAME[kind].most)
    _many(found, "bundle", files.bundles, bytes)
    _many(found, "evidence", files.evidence, _evidence)
    _many(found, "collateral", _collateral(files.collateral), bytes)
    _many(found, "extract", files.extracts, bundle.without_keys)
    _many(found, "checkpoint", files.checkpoints, _checkpoint)
    _many(found, "receipt", files.receipts, stripped, most=receipts.MAX_ANSWER_BYTES)
    _many(found, "leakage", files.leakage, _leakage)
    _many(found, "controls", files.controls, _controls)
    return found


def _many(found: dict[str, bytes], kind: str, paths: Iterable[Path], take: Callable[[bytes], bytes], *,
          most: int | None = None) -> None:
    """Add the members of a kind that may come many times."""
    listed = list(paths)
    if len(listed) > MOST_OF_A_KIND:
        raise AuditError(f"pack: {quantity(len(listed), 'file')} of a kind, at most {MOST_OF_A_KIND} are taken",
                         code="pack-size")
    for path in listed:
        content = take(_content(path, most or BY_NAME[kind].most))
        found[place(BY_NAME[kind], path.name, set(found))] = content


def _content(path: Path, most: int) -> bytes:
    try:
        return held.content(path, most)
    except OSError as error:
        raise AuditError(f"{path}: {error.strerror}", code="file-unreadable",
                         hint="name a file, or leave it out: the pack then says that it is missing") from None


def _beside(path: Path | None, suffix: str) -> Path | None:
    """Return a file beside another, if there is one."""
    there = None if path is None else path.with_name(path.name + suffix)
    return there if there is not None and there.is_file() else None


def _in(folder: Path | None, name: str) -> Path | None:
    return None if folder is None else folder / name


def _evidence(content: bytes) -> bytes:
    reading.parse(content)
    return content


def _checkpoint(content: bytes) -> bytes:
    signed_head(content)
    return content


def _controls(content: bytes) -> bytes:
    controls.parse(content, "--controls")
    return content


def _leakage(content: bytes) -> bytes:
    leakage.parse(content)
    return content


def _collateral(folder: Path | None) -> list[Path]:
    """Return the files of a folder that are collateral. A key that lies beside them is not."""
    if folder is None:
        return []
    try:
        paths = sorted(path for path in folder.iterdir() if path.is_file())[:MAX_FILES]
    except OSError as error:
        raise AuditError(f"{folder}: {error.strerror}", code="file-unreadable") from None
    return [path for path in paths if Collateral().add(_content(path, BY_NAME["collateral"].most), path.name)]
