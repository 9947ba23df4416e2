"""The traces that a process with a sealed model must not leave behind: keys, what comes of them,
weights in any order."""

from __future__ import annotations

import hmac
from pathlib import Path

import numpy as np

from appliance.models.file import gguf
from appliance.models.sealed.reader import open_sealed
from benchmarks.residue import Search, Words, windows
from tests.support import aes
from tests.support import sealed_by_spec as spec


def key_traces(master: bytes, sealed: Path) -> dict[str, bytes]:
    """Secrets of the sealed file at `sealed`, by name."""
    body = sealed.read_bytes()[:144]
    context, salt = body[24:48] + body[80:112], body[48:80]
    found = {"master key": master, "master key, as text": master.hex().encode()}
    found |= _mac_traces("extracted key", hmac.digest(salt, master, "sha256"))
    for label in ("tile key", "header key"):
        key = spec.hkdf(master, salt, spec.MAGIC + b"\n" + label.encode() + b"\n" + context)
        found |= _mac_traces(label, key)
        if label == "tile key":
            found |= {f"{label}: {name}": trace for name, trace in aes.traces(key).items()}
    return found


def _mac_traces(name: str, key: bytes) -> dict[str, bytes]:
    """A key of HMAC, and the two blocks that it begins with (RFC 2104)."""
    return {name: key, f"{name}, inner": bytes(byte ^ 0x36 for byte in key),
            f"{name}, outer": bytes(byte ^ 0x5C for byte in key)}


def weight_traces(plain: Path, sealed: Path, master: bytes, step: int = 64) -> dict[str, Words]:
    """Words of all tensors: as the GGUF file has them, and in kernel order."""
    body = plain.read_bytes()
    in_file = [windows(body[info.offset:info.offset + info.nbytes], step)
               for info in gguf.parse(body).tensors.values()]
    packed = []
    with open_sealed(sealed, master, header_sha256=None) as model:
        buffer = bytearray(model.tiling.max_tile_nbytes)
        for tile in model.tiling:
            packed.append(windows(memoryview(buffer)[:model.read_tile(tile.number, buffer)], step))
    return {"weights, file order": np.unique(np.concatenate(in_file)),
            "weights, kernel order": np.unique(np.concatenate(packed))}


class Traces:
    """Named words, looked for all at once."""

    def __init__(self, keys: dict[str, bytes], weights: dict[str, Words]) -> None:
        self._words = {name: windows(secret) for name, secret in keys.items()} | weights
        self._search = Search(np.unique(np.concatenate(list(self._words.values()))))

    def found(self, process: int) -> dict[str, int]:
        """How many words of each name stand in the writable memory of a process that does not run."""
        searched, found = self._search.words(process)
        assert searched > 1 << 20
        counts = {name: _common(found, words) for name, words in self._words.items() if len(words)}
        return {name: count for name, count in counts.items() if count}


def _common(few: Words, many: Words) -> int:
    """How many words two sorted arrays have in common."""
    places = np.searchsorted(many, few)
    return int((many[np.minimum(places, len(many) - 1)] == few).sum())
