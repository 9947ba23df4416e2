"""The collateral that came with good evidence, kept for a day on which none comes.

A host passes on its chip's certificate and its vendor's list with evidence. They are kept after a
good verdict. So a host that stops, or a vendor that cannot be reached, stops nobody until the
documents end. Signatures and times are checked anew each time, as those of any collateral.

Each target has a folder of its own, so that nothing of one host counts for another.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

from appliance.attestation import keyfile
from appliance.attestation.case import reading
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


def keep(known: Reference, verdict: Verdict) -> None:
    """Keep what came with the evidence of a good verdict, if the reference says where. Raises
    PolicyError `file-unwritable`."""
    if known.keep is None or verdict.code or verdict.raw is None:
        return
    folder = _folder(known.keep, verdict.target)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PolicyError(f"{folder}: {error.strerror}", code="file-unwritable",
                          hint="name a folder that this user can write to: --keep DIR") from None
    for item in _items(verdict.raw):
        path = folder / hashlib.sha256(item).hexdigest()[:32]
        if path.exists():
            os.utime(path)
        elif Collateral().add(item, "evidence"):
            keyfile.write_whole(path, item)
    for path in sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)[:-MOST]:
        path.unlink(missing_ok=True)


def _items(raw: bytes) -> tuple[bytes, ...]:
    try:
        return reading.collateral_of(reading.parse(raw))
    except AttestationError:
        return ()


def _folder(keep: Path, target: str) -> Path:
    return keep / hashlib.sha256(target.encode()).hexdigest()[:32]
