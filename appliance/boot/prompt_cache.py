"""The file that `appliance infer --cache` keeps keys and values in: one key, one model.

The file is sealed as pages on a state disk are (docs/formats/session-pages.md), under the key of a
key file. The key does not expire: whoever has both files can read the prompts' token ids, keys and
values. Without the key file nothing opens.
"""

from __future__ import annotations

import errno
import itertools
import os
import secrets
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from appliance.engine.engine import PageKind
from appliance.errors import ModelKeyError, StateError
from appliance.keys import document
from appliance.keys.providers import FileKey, Secret
from appliance.secure.derivation import hkdf_into
from appliance.secure.locked import SecretBytes
from appliance.secure.wipe import wipe
from appliance.state import page_format
from appliance.state.device import Device
from appliance.state.page_keys import Bindings
from appliance.state.pages import PageShelf, PageWriter
from appliance.state.sessions import binding

MAGIC: Final = b"APPCACHE"
VERSION: Final = 2
SALT_BYTES: Final = 32
_HEAD = struct.Struct("<8sI32s")  # magic, version, salt; then the tag of nothing under the file's key
_HEAD_END: Final = _HEAD.size + page_format.TAG_BYTES
_CLOSING_SECONDS = 60.0


class FileKeys(Bindings):
    """The keys of one file: one for each run, which all come of the file's key and never expire."""

    def __init__(self, secret: Secret, salt: bytes) -> None:
        super().__init__()
        self._secret, self._salt = secret, salt
        self._run = secrets.randbits(63) | 1
        self._pages = itertools.count(1)
        self._ciphers: dict[tuple[int, str], AESGCM] = {}

    def name(self) -> tuple[int, int]:
        """The key of this run, and the number of the next page under it."""
        return self._run, next(self._pages)

    def cipher(self, number: int, use: str, make: Callable[[bytearray], AESGCM]) -> AESGCM | None:
        """The cipher of a run's key for one use."""
        if (number, use) not in self._ciphers:
            key = SecretBytes(page_format.KEY_BYTES)
            hkdf_into(key, self._secret.data, self._salt,
                      page_format.DOMAIN + b"run\n" + number.to_bytes(8, "little"))
            self._ciphers[number, use] = make(key)
        return self._ciphers[number, use]

    def alive(self, number: int) -> bool:
        """Always."""
        return True

    @property
    def next_expiry(self) -> float | None:
        """None: no key expires."""
        return None

    def close(self) -> None:
        """Forget all."""
        self._ciphers.clear()
        self._secret.wipe()


class PromptCache:
    """An open file with its shelf, to be closed. A second process that opens it is refused."""

    def __init__(self, path: Path, key: Path, model: bytes, page: PageKind) -> None:
        """`model`: SHA-256 of its file. The cache file is made where there is none, and so is its
        key. StateError and ModelKeyError say why not."""
        bound = binding("", page_format.BLOCK, model, page.arithmetic)
        fresh = not path.exists()
        if fresh:
            _make(path, b"")
            if not key.exists():
                _make_key(key)
        elif not key.exists():
            raise ModelKeyError(f"{path} is there, but its key {key} is not",
                                hint="give it with --cache-key, or delete the file, which nothing opens without it")
        secret = FileKey(key, bare=True).key()
        device: Device | None = None
        try:
            device = Device(path)
            salt = self._head(device, path, secret, bound)
            self._keeper, self._keys = PageWriter(device), FileKeys(secret, salt)
        except BaseException:
            secret.wipe()
            if device is not None:
                device.close()
            raise
        self._device = device
        self.shelf = PageShelf(self._keeper, self._keys, bound, at=page_format.BLOCK, places=page.context,
                               halves=page.halves)
        self._keeper.start()

    def close(self) -> None:
        """Write what is on its way, and forget the keys. StateError where the file could not be
        written."""
        broken = not self._keeper.close(lambda: None, _CLOSING_SECONDS) or self._keeper.broken
        self._keys.close()
        self._device.close()
        if broken:
            raise StateError("the cache file cannot be read or written: nothing more was kept", code="cache-broken",
                             hint="see that the file system has room")

    @staticmethod
    def _head(device: Device, path: Path, secret: Secret, bound: bytes) -> bytes:
        """The salt of the file; of a new one it is written. StateError for another key or
        binding."""
        found = device.read(0, _HEAD_END)
        if not found:
            salt = secrets.token_bytes(SALT_BYTES)
            head = _HEAD.pack(MAGIC, VERSION, salt)
            tag = _file_cipher(secret, salt, bound).encrypt(bytes(12), b"", page_format.DOMAIN + head)
            device.write(0, (head + tag).ljust(page_format.BLOCK, b"\0"))
            return salt
        magic, version, salt = _HEAD.unpack_from(found.ljust(_HEAD_END, b"\0"))
        if (magic, version) != (MAGIC, VERSION):
            named = f"a cache file of version {version}, and" if magic == MAGIC else "not a cache file:"
            raise StateError(f"{path} is {named} version {VERSION} is needed", code="cache-foreign",
                             hint="name another file, or delete this one: prompts are read again then")
        try:
            _file_cipher(secret, salt, bound).decrypt(bytes(12), found[_HEAD.size:],
                                                        page_format.DOMAIN + found[:_HEAD.size])
        except InvalidTag:
            raise StateError(f"{path} is of another key, model, kv_cache or context length, or it was altered",
                             code="cache-foreign", hint="name another file, or delete this one") from None
        return bytes(salt)


def _file_cipher(secret: Secret, salt: bytes, bound: bytes) -> AESGCM:
    """The key of the file's head, which shows that key and binding are the ones it was made with.
    """
    return page_format.cipher(secret.data, b"file\n" + salt, bound)


def _make(path: Path, data: bytes | bytearray) -> None:
    """Make a file that its owner alone can read. StateError where it cannot be."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            if os.write(descriptor, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StateError(f"{path} cannot be made: {error.strerror}", code="cache-broken") from None


def _make_key(path: Path) -> None:
    with Secret.random() as key:
        text = document.line(key.data)
    try:
        _make(path, text)
    finally:
        wipe(text)
