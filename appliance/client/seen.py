"""The collateral that came with good evidence, kept for a day on which none comes.

A host passes on its chip's certificate and its vendor's list with evidence. They are kept after a
good verdict. So a host that stops, or a vendor that cannot be reached, stops nobody until the
documents end. Signatures and times are checked anew each time, as those of any collateral.

Each target has a folder of its own, so that nothing of one host counts for another.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding

from appliance.attestation import keyfile
from appliance.attestation.case import reading
from appliance.attestation.findings import Finding
from appliance.attestation.judge import collateral_folder
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.client.reference import Reference
from appliance.client.verdict import Verdict
from appliance.errors import AttestationError, PolicyError

MOST = 16  # files of a target; the oldest make room


def joined(known: Reference, target: str) -> Reference:
    """Return a reference with what is kept of a target. Raises UncheckedEvidenceError if it cannot
    be read."""
    if known.keep is None or not (folder := _folder(known.keep, target)).is_dir():
        return known
    return replace(known, collateral=known.collateral.joined(collateral_folder.load(folder)))


def stapled(known: Reference, answer: bytes | None) -> Reference | None:
    """Return a reference with the collateral that came with evidence; None if none came."""
    items = () if answer is None else _items(answer)
    return replace(known, collateral=known.collateral.with_items(items, "evidence")) if items else None


def keep(known: Reference, verdict: Verdict) -> Verdict:
    """Keep what came with the evidence of a good verdict, if the reference says where. Returns the
    verdict: where nothing can be kept, with a finding that says so."""
    if known.keep is None or verdict.code or verdict.raw is None:
        return verdict
    folder = _folder(known.keep, verdict.target)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for data in filter(None, map(_document, _items(verdict.raw))):
            _write(folder / hashlib.sha256(data).hexdigest()[:32], data)
        _make_room(folder)
    except (OSError, PolicyError) as error:
        told = Finding("kept", "not checked", f"--keep: {getattr(error, 'strerror', error)}")
        return replace(verdict, findings=(*verdict.findings, told))
    return verdict


def _write(path: Path, data: bytes) -> None:
    try:
        os.utime(path)
    except FileNotFoundError:
        keyfile.write_whole(path, data)


def _make_room(folder: Path) -> None:
    """Take the oldest files away. Others may do so at the same time."""
    ages = list[tuple[float, Path]]()
    for path in collateral_folder.files(folder):
        with suppress(FileNotFoundError):
            ages.append((path.stat().st_mtime, path))
    for _, path in sorted(ages)[:-MOST]:
        path.unlink(missing_ok=True)


def _document(item: bytes) -> bytes | None:
    """A certificate or a list as it is, without what may follow it; None for what is neither."""
    found = Collateral()
    if not found.add(item, "evidence"):
        return None
    known = [each.public_bytes(Encoding.DER) for each in found.certificates]
    known += [each.public_bytes(Encoding.DER) for each in found.crls]
    return known[0] if len(known) == 1 else item


def _items(raw: bytes) -> tuple[bytes, ...]:
    try:
        return reading.collateral_of(reading.parse(raw))
    except AttestationError:
        return ()


def _folder(keep: Path, target: str) -> Path:
    return keep / hashlib.sha256(target.encode()).hexdigest()[:32]
