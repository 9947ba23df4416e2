"""Append to a builder's release log: two files in a folder, which any static server can serve."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance.attestation import keyfile
from appliance.errors import ImageError
from appliance.policy import inputfile
from appliance.signed import releases
from appliance.signed.releases import HEAD, LOG, Releases
from appliance.transparency import note, reading
from appliance.transparency.checkpoint import Checkpoint
from appliance.transparency.tree import LeafRange, leaf_hash

Entry = tuple[str, dict[str, str]]  # an event and its fields


def append(folder: Path, entries: Sequence[Entry], key: Ed25519PrivateKey, at: datetime | None = None) -> Releases:
    """Append records, and sign the log anew. A folder without a log gets one. Lines that no
    checkpoint covers, as of a run that was cut off, are dropped. Raises NoteError for a log that is
    not this builder's."""
    public = key.public_key().public_bytes_raw()
    lines, log = _present(folder, public)
    time = at or datetime.now(UTC)
    added = list(entries)
    if not lines:
        log = secrets.token_hex(16)
        added[:0] = [("releases.opened", {"log": log, "builder_ed25519": public.hex()})]
    for event, fields in added:
        prev = leaf_hash(lines[-1]) if lines else None
        lines.append(releases.record(len(lines), prev, event, fields, time))
    tree = LeafRange()
    for line in lines:
        tree.append(leaf_hash(line))
    here = Checkpoint(releases.ORIGIN + log, tree.end, tree.root)
    head = note.Note(here.text, (note.sign(here.text, here.origin, key),)).encode()
    data = b"".join(line + b"\n" for line in lines)
    found = releases.read(data, head, public)
    keyfile.write_whole(folder / LOG, data)
    keyfile.write_whole(folder / HEAD, head)
    return found


def _present(folder: Path, public: bytes) -> tuple[list[bytes], str]:
    """Return the signed lines of a folder's log, and its identity."""
    try:
        folder.mkdir(exist_ok=True)
        if not (folder / HEAD).exists():
            return [], ""
        data, head = (inputfile.read(folder / name, releases.MAX_BYTES) for name in (LOG, HEAD))
    except OSError as error:
        raise ImageError(f"{folder}: {error.strerror}", hint="name the folder of a release log") from None
    here = reading.head(reading.note(head).text)
    lines = data.split(b"\n")[:here.size]
    found = releases.read(b"".join(line + b"\n" for line in lines), head, public)
    return list(found.lines), here.origin.removeprefix(releases.ORIGIN)
