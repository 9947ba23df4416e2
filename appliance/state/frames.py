"""The bytes of a state disk: two slots and a log of frames, sealed. Spec:
docs/formats/state-disk.md.

Nothing here reads or writes a disk, or draws a random number. Integers are little-endian. Keys are
made for one slot or one session from a salt that is random and never used again. So a host that
puts back an old disk cannot make the appliance use a key and nonce twice.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from appliance.secure.derivation import hkdf_into
from appliance.secure.locked import SecretBytes

DOMAIN: Final = b"appliance/state/v1\n"
SLOT_MAGIC, FRAME_MAGIC = b"APPSTATE", b"ASF1"
VERSION: Final = 1
SLOT_BYTES: Final = 1 << 20
LOG_AT: Final = 2 * SLOT_BYTES
MIN_DISK_BYTES: Final = LOG_AT + (1 << 20)
SALT_BYTES, ID_BYTES, TAG_BYTES, HASH_BYTES = 32, 16, 16, 32

SESSION, AUDIT, PAGES = 1, 2, 3  # kinds of frames
MAX_PAYLOAD: Final = 1 << 20

_SLOT_HEAD = struct.Struct("<8sII16s32s")    # magic, version, bytes that follow, disk, salt
_SLOT_BODY = struct.Struct("<QQQQ32s32s")    # counter, epoch, next sequence, tail, chain, salt of the open session
_FRAME_HEAD = struct.Struct("<4sIQII")       # magic, bytes that follow (salt, ciphertext, tag), sequence, kind, zero
MAX_SAVED: Final = SLOT_BYTES - _SLOT_HEAD.size - _SLOT_BODY.size - TAG_BYTES


@dataclass(frozen=True)
class Slot:
    """The content of one slot. `tail`: offset behind the last frame that it knows of. `saved`: the
    snapshot's bytes."""

    counter: int
    epoch: int
    sequence: int
    tail: int
    chain: bytes
    session_salt: bytes
    saved: bytes = b""


@dataclass(frozen=True)
class Frame:
    """One record of the log, with the offset behind it and the chain's value after it."""

    sequence: int
    kind: int
    payload: bytes
    end: int
    chain: bytes
    salt: bytes  # of its session


def chain_start(disk: bytes) -> bytes:
    """The chain's value before the first frame."""
    return hashlib.sha256(DOMAIN + disk).digest()


def next_chain(chain: bytes, frame: bytes) -> bytes:
    """The chain's value after a frame."""
    return hashlib.sha256(chain + frame).digest()


def _key(secret: bytes | bytearray, salt: bytes, use: bytes, disk: bytes) -> AESGCM:
    info = DOMAIN + use + b"\n" + disk
    key = SecretBytes(32)
    hkdf_into(key, secret, salt, info)
    return AESGCM(key)


def seal_slot(secret: bytes | bytearray, disk: bytes, salt: bytes, slot: Slot) -> bytes:
    """A slot's bytes, at most SLOT_BYTES. ValueError when `saved` is too long."""
    if len(slot.saved) > MAX_SAVED:
        raise ValueError(f"{len(slot.saved)} bytes to save, at most {MAX_SAVED}")
    plain = _SLOT_BODY.pack(slot.counter, slot.epoch, slot.sequence, slot.tail, slot.chain,
                            slot.session_salt) + slot.saved
    head = _SLOT_HEAD.pack(SLOT_MAGIC, VERSION, len(plain) + TAG_BYTES, disk, salt)
    return head + _key(secret, salt, b"slot", disk).encrypt(bytes(12), plain, DOMAIN + head)


def open_slot(secret: bytes | bytearray, data: bytes) -> tuple[bytes, Slot] | None:
    """The disk's id and the slot in the first bytes of `data`; None if they do not authenticate."""
    if len(data) < _SLOT_HEAD.size:
        return None
    magic, version, size, disk, salt = _SLOT_HEAD.unpack_from(data)
    end = _SLOT_HEAD.size + size
    if (magic, version) != (SLOT_MAGIC, VERSION) or end > min(len(data), SLOT_BYTES):
        return None
    head = data[:_SLOT_HEAD.size]
    try:
        plain = _key(secret, salt, b"slot", disk).decrypt(bytes(12), data[_SLOT_HEAD.size:end], DOMAIN + head)
    except InvalidTag:
        return None
    if len(plain) < _SLOT_BODY.size:
        return None
    return disk, Slot(*(*_SLOT_BODY.unpack_from(plain), plain[_SLOT_BODY.size:]))


class FrameSealer:
    """Seals frames under the key of one session. A sequence number is sealed once."""

    def __init__(self, secret: bytes | bytearray, disk: bytes, salt: bytes) -> None:
        self.salt = salt
        self._disk = disk
        self._cipher = _key(secret, salt, b"session", disk)

    def seal(self, sequence: int, kind: int, payload: bytes, chain: bytes) -> bytes:
        """The frame's bytes. ValueError when the payload is too long."""
        if len(payload) > MAX_PAYLOAD:
            raise ValueError(f"a record of {len(payload)} bytes, at most {MAX_PAYLOAD}")
        salt = self.salt if kind == SESSION else b""
        head = _FRAME_HEAD.pack(FRAME_MAGIC, len(salt) + len(payload) + TAG_BYTES, sequence, kind, 0) + salt
        return head + self._cipher.encrypt(_nonce(sequence), payload, self._bound(head, chain))

    def open(self, sequence: int, head: bytes, sealed: bytes, chain: bytes) -> bytes | None:
        """The payload, or None if the frame does not authenticate in this place."""
        try:
            return self._cipher.decrypt(_nonce(sequence), sealed, self._bound(head, chain))
        except InvalidTag:
            return None

    def _bound(self, head: bytes, chain: bytes) -> bytes:
        return DOMAIN + self._disk + head + chain


def _nonce(sequence: int) -> bytes:
    return sequence.to_bytes(12, "big")


class FrameReader:
    """Reads frames one after another, from a place where the chain is known, until one does not
    authenticate: that is where the log ends, or where somebody cut it."""

    def __init__(self, secret: bytes | bytearray, disk: bytes, *, sequence: int = 0, tail: int = LOG_AT,
                 chain: bytes | None = None, session_salt: bytes = b"") -> None:
        self._secret, self._disk = secret, disk
        self._session = FrameSealer(secret, disk, session_salt) if any(session_salt) else None
        self.sequence, self.tail = sequence, tail
        self.chain = chain_start(disk) if chain is None else chain

    def frame_nbytes(self, head: bytes) -> int | None:
        """How many bytes the frame with this header takes; None if it is no header of the next
        frame."""
        if len(head) < _FRAME_HEAD.size:
            return None
        magic, size, sequence, kind, zero = _FRAME_HEAD.unpack_from(head)
        least = TAG_BYTES + (SALT_BYTES if kind == SESSION else 0)
        if (magic, sequence, zero) != (FRAME_MAGIC, self.sequence, 0) or not least <= size <= least + MAX_PAYLOAD:
            return None
        return _FRAME_HEAD.size + int(size)

    def begun(self, head: bytes) -> int:
        """How many bytes of the next frame's header these are, where it was cut: zeros follow. 0 if
        they are none of it."""
        given = head.rstrip(b"\0")
        place = FRAME_MAGIC + head[4:8] + self.sequence.to_bytes(8, "little")
        return len(given) if given and len(given) < _FRAME_HEAD.size and place.startswith(given[:len(place)]) else 0

    def accept(self, data: bytes) -> Frame | None:
        """The frame in exactly these bytes, which becomes the last one; None if it does not
        authenticate."""
        if self.frame_nbytes(data[:_FRAME_HEAD.size]) != len(data):
            return None
        kind = _FRAME_HEAD.unpack_from(data)[3]
        begun = _FRAME_HEAD.size + (SALT_BYTES if kind == SESSION else 0)
        head, sealed = data[:begun], data[begun:]
        session = FrameSealer(self._secret, self._disk, head[_FRAME_HEAD.size:]) if kind == SESSION else self._session
        payload = None if session is None else session.open(self.sequence, head, sealed, self.chain)
        if session is None or payload is None:
            return None
        self.chain = next_chain(self.chain, data)
        self.tail += len(data)
        self.sequence, self._session = self.sequence + 1, session
        return Frame(self.sequence - 1, kind, payload, self.tail, self.chain, session.salt)


def frame_nbytes(kind: int, payload: int) -> int:
    """Bytes of a frame of a kind with so many bytes of payload."""
    return _FRAME_HEAD.size + (SALT_BYTES if kind == SESSION else 0) + payload + TAG_BYTES


HEAD_BYTES: Final = _FRAME_HEAD.size
SLOT_HEAD_BYTES: Final = _SLOT_HEAD.size
MAX_SESSION_BYTES: Final = SALT_BYTES + 8 + TAG_BYTES  # that follow the header of a frame that begins a session
