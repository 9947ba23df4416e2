"""A ledger of what this process seals by AES-GCM: a key and a nonce that are used for two contents are found."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

from cryptography.hazmat.primitives.ciphers.aead import AESGCM


class Ledger:
    """Every key and nonce that sealed something, with a digest of what was sealed."""

    def __init__(self) -> None:
        self.sealed: dict[tuple[bytes, bytes], bytes] = {}
        self.repeats: list[bytes] = []  # nonces
        self.keys = set[bytes]()
        self._lock = threading.Lock()

    def note(self, key: bytes, nonce: bytes, data: Any, extra: Any) -> None:
        """Enter one. The same content once more, as of a sealing that goes on, tells nobody anything."""
        content = sha256(memoryview(data).nbytes.to_bytes(8, "big") + bytes(data) + bytes(extra or b"")).digest()
        with self._lock:
            self.keys.add(key)
            if self.sealed.setdefault((key, nonce), content) != content:
                self.repeats.append(nonce)


class Watched:
    """AES-GCM of `cryptography`, which a ledger sees."""

    def __init__(self, ledger: Ledger, key: Any) -> None:
        self._real, self._key, self._ledger = AESGCM(key), sha256(bytes(key)).digest(), ledger
        self.decrypt, self.decrypt_into = self._real.decrypt, self._real.decrypt_into

    def encrypt(self, nonce: bytes, data: Any, extra: Any) -> bytes:
        """As it says."""
        self._ledger.note(self._key, nonce, data, extra)
        return self._real.encrypt(nonce, data, extra)

    def encrypt_into(self, nonce: bytes, data: Any, extra: Any, buffer: Any) -> int:
        """As it says."""
        self._ledger.note(self._key, nonce, data, extra)
        return self._real.encrypt_into(nonce, data, extra, buffer)


class _Maker:
    """Stands where a module has the class."""

    generate_key = staticmethod(AESGCM.generate_key)

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def __call__(self, key: Any) -> Watched:
        return Watched(self._ledger, key)


@contextmanager
def watched() -> Iterator[Ledger]:
    """A ledger of all modules of the project that are imported by now."""
    ledger = Ledger()
    modules = [module for name, module in list(sys.modules.items())
               if name.partition(".")[0] in ("appliance", "examples") and getattr(module, "AESGCM", None) is AESGCM]
    assert modules
    for module in modules:
        module.AESGCM = _Maker(ledger)  # type: ignore[attr-defined]
    try:
        yield ledger
    finally:
        for module in modules:
            module.AESGCM = AESGCM  # type: ignore[attr-defined]


def told(records: list[bytes], known: bytes, secret: bytes) -> list[tuple[int, int]]:
    """Pairs of records of which two XORs give somebody's secret to whoever has the disk, and sent one of the texts:
    `known` as it stands in a record, at any place."""
    found = []
    for one, first in enumerate(records):
        for two, second in enumerate(records):
            both = int.from_bytes(first, "big") ^ int.from_bytes(second, "big")
            wanted = bytes(a ^ b for a, b in zip(known, secret, strict=True))
            if one != two and wanted in both.to_bytes(max(len(first), len(second)), "big"):
                found.append((one, two))
    return found
