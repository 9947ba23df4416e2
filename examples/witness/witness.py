"""A witness's rules: cosign only what grew from what was cosigned before."""

from __future__ import annotations

import base64
import json
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance.codec import strict
from appliance.errors import NoteError
from appliance.transparency import note, proofs, reading
from appliance.transparency.note import COSIGNS, Note, NoteKey
from appliance.transparency.tree import HASH_BYTES

MAX_BODY_BYTES = 64 << 10


class RefusedError(Exception):
    """A request that is not cosigned: an HTTP status, and the body that goes with it."""

    def __init__(self, status: int, body: str = "") -> None:
        super().__init__(f"{status} {body}".strip())
        self.status, self.body = status, body


class BrokenError(Exception):
    """The witness's own folder cannot be used: nothing is cosigned until a person looked."""


class Witness:
    """One witness. Its state is on the disk before a cosignature leaves."""

    def __init__(self, folder: Path, name: str, logs: Iterable[NoteKey]) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._state, seed = folder / "logs.json", folder / "key"
        if not seed.exists():
            seed.touch(0o600)
            seed.write_bytes(Ed25519PrivateKey.generate().private_bytes_raw())
        try:
            self._private = Ed25519PrivateKey.from_private_bytes(seed.read_bytes())
        except ValueError:
            raise BrokenError(f"{seed}: not the 32 bytes of a key; put back a copy of it") from None
        self._logs: dict[str, list[NoteKey]] = {}  # a log in a file has a new key at each boot
        for each in logs:
            self._logs.setdefault(each.name, []).append(each)
        self._lock = threading.Lock()
        self._known()
        self.key = NoteKey(name, self._private.public_key().public_bytes_raw(), COSIGNS)

    def add_checkpoint(self, body: bytes, *, at: int | None = None) -> str:
        """Answer an `add-checkpoint` request with the cosignature's line. Raises RefusedError."""
        old, proof, signed = _parsed(body)
        try:
            found = reading.note(signed)
            here = reading.head(found.text)
        except NoteError:
            raise RefusedError(400) from None
        if here.origin not in self._logs:
            raise RefusedError(404)
        if not any(_signed(found, each) for each in self._logs[here.origin]):
            raise RefusedError(403)
        if old > here.size:
            raise RefusedError(400)
        with self._lock:
            known = self._known()
            size, root = known.get(here.origin, (0, ""))
            if old != size or (here.size == size and size and here.root.hex() != root):
                raise RefusedError(409, f"{size}\n")
            if size and not proofs.follows(size, bytes.fromhex(root), here.size, here.root, proof):
                raise RefusedError(422)
            if not size and proof:
                raise RefusedError(422)
            self._save({**known, here.origin: (here.size, here.root.hex())})
        when = int(time.time()) if at is None else at
        return note.sign(here.text, self.key.name, self._private, when=when).line()

    def _known(self) -> dict[str, tuple[int, str]]:
        """The size and root of each log that was cosigned last. BrokenError: begun anew, this
        witness would cosign a second history."""
        try:
            found = strict.json_value(self._state.read_bytes()) if self._state.exists() else {}
            known = {str(name): (int(size), str(root)) for name, (size, root) in found.items()}
            if any(size < 0 or len(bytes.fromhex(root)) != HASH_BYTES for size, root in known.values()):
                raise ValueError("another form")
        except (ValueError, TypeError, AttributeError):
            raise BrokenError(f"{self._state}: not in form; put back a copy of it") from None
        return known

    def _save(self, state: dict[str, tuple[int, str]]) -> None:
        beside = self._state.with_suffix(".new")
        with beside.open("w") as file:
            json.dump(state, file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self._state)


def _signed(signed: Note, key: NoteKey) -> bool:
    try:
        key.check(signed)
    except NoteError:
        return False
    return True


def _parsed(body: bytes) -> tuple[int, list[bytes], bytes]:
    """Old size, proof and signed note of a request. Raises RefusedError."""
    head, found, signed = body.partition(b"\n\n")
    try:
        first, *rest = head.decode("ascii").split("\n")
        word, _, number = first.partition(" ")
        if not found or word != "old" or not number.isdecimal() or str(int(number)) != number or len(rest) > 63:
            raise ValueError(first)
        return int(number), [strict.base64(line) for line in rest], signed
    except ValueError:
        raise RefusedError(400) from None


def request(old: int, proof: Iterable[bytes], signed: bytes) -> bytes:
    """The body of an `add-checkpoint` request."""
    lines = [f"old {old}\n", *(base64.b64encode(each).decode() + "\n" for each in proof), "\n"]
    return "".join(lines).encode() + signed
