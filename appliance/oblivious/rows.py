"""Tokens to their bytes by the `token_row` kernel: each page of the table of all tokens is read for
each token."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import numpy as np

from appliance.errors import UnsupportedError
from appliance.kernels.runtime.table import KernelTable
from appliance.oblivious.pages import PAGE, PagedTable
from appliance.secure.locked import LockedBuffer
from appliance.text.tokenizer.tokenizer import Tokenizer

_HEAD = 4  # bytes before those of a token: how many they are, and 1 for a control token


class PieceRows:
    """The bytes of each token, in rows of one size. Threads take turns."""

    def __init__(self, tokenizer: Tokenizer, kernels: KernelTable) -> None:
        """UnsupportedError where a token is longer than a page."""
        pieces = tokenizer.pieces()
        size = max(1 << (max(len(piece) for piece, _ in pieces) + _HEAD - 1).bit_length(), 64)
        if size > PAGE:
            raise UnsupportedError(f"a token has {size - _HEAD} bytes or so; allowed: {PAGE - _HEAD}",
                                   hint='use another model, or privacy.memory_access = "open"')
        rows = np.zeros((len(pieces), size), np.uint8)
        for token, (piece, special) in enumerate(pieces):
            rows[token, :2] = len(piece) & 0xFF, len(piece) >> 8
            rows[token, 2] = special
            rows[token, _HEAD:_HEAD + len(piece)] = np.frombuffer(piece, np.uint8)
        self.table, self.size = PagedTable(rows), size
        self._kernels, self._row = kernels, kernels.function("token_row")
        self.row, self._lock = LockedBuffer(size, "answers"), threading.Lock()

    def piece(self, token: int) -> bytes:
        """The bytes of a token."""
        with self.row_of(token) as (piece, _):
            return bytes(piece)

    def is_special(self, token: int) -> bool:
        """Whether it is a control token."""
        with self.row_of(token) as (_, special):
            return special

    @contextlib.contextmanager
    def row_of(self, token: int) -> Iterator[tuple[memoryview, bool]]:
        """The bytes of a token as they stand in memory, and whether it is a control token. They are
        wiped at the end."""
        with self._lock:
            self._row(self.table.address, self.table.count, self.size, token, self.row.address)
            try:
                nbytes = int.from_bytes(self.row.view[:2], "little")
                yield self.row.view[_HEAD:_HEAD + nbytes], bool(self.row.view[2])
            finally:
                self.row.wipe()
