"""llama.cpp's samplers, called one by one on logits of ours."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from tests.support import require
from tests.support.fetch_llama_samplers import LIBRARY


class _Data(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int32), ("logit", ctypes.c_float), ("p", ctypes.c_float))


class _Array(ctypes.Structure):
    _fields_ = (("data", ctypes.POINTER(_Data)), ("size", ctypes.c_size_t), ("selected", ctypes.c_int64),
                ("sorted", ctypes.c_bool))


class _Vector(ctypes.Structure):
    """A std::vector of libstdc++, to be read."""

    _fields_ = (("begin", ctypes.c_void_p), ("end", ctypes.c_void_p), ("room", ctypes.c_void_p))


FLOAT, INT, SIZE = ctypes.c_float, ctypes.c_int32, ctypes.c_size_t


@cache
def _library() -> Any:
    if not LIBRARY.is_file():
        require.absent("llama.cpp's samplers: python tests/support/fetch_llama_samplers.py")
    return ctypes.CDLL(str(LIBRARY))


@dataclass(frozen=True)
class Left:
    """The result of a sampler: logits by token, without barred ones, and the chosen token."""

    logits: dict[int, float]
    chosen: int | None


class Peer:
    """One sampler with its state. `name`: what follows `llama_sampler_init_` in the name of its constructor."""

    def __init__(self, name: str, *arguments: Any) -> None:
        """`arguments`: ctypes numbers."""
        self._library = _library()
        make = getattr(self._library, name if name.startswith("_Z") else f"llama_sampler_init_{name}")
        make.restype, make.argtypes = ctypes.c_void_p, [type(each) for each in arguments]
        self._sampler = ctypes.c_void_p(make(*arguments))

    @classmethod
    def dry(cls, multiplier: float, base: float, allowed: int, last: int, breakers: Sequence[Sequence[int]]) -> Peer:
        """DRY with sequences of tokens as breakers, by the constructor that llama.cpp's own tests use."""
        def vector(data: Any) -> _Vector:
            start, end = ctypes.addressof(data), ctypes.addressof(data) + ctypes.sizeof(data)
            return _Vector(start, end, end)
        inner = [(INT * len(each))(*each) for each in breakers]
        outer = (_Vector * len(inner))(*map(vector, inner))
        return cls("_Z30llama_sampler_init_dry_testingffiiRKSt6vectorIS_IiSaIiEESaIS1_EE", FLOAT(multiplier),
                   FLOAT(base), INT(allowed), INT(last), ctypes.pointer(vector(outer)))

    def accept(self, tokens: Sequence[int]) -> None:
        """Have the sampler take note of tokens."""
        for token in tokens:
            self._library.llama_sampler_accept(self._sampler, INT(token))

    def apply(self, logits: np.ndarray) -> Left:
        """Apply the sampler to the logits of tokens 0, 1, …"""
        rows = (_Data * len(logits))(*((token, logit, 0.0) for token, logit in enumerate(logits.tolist())))
        array = _Array(ctypes.cast(rows, ctypes.POINTER(_Data)), len(logits), -1, False)
        self._library.llama_sampler_apply(self._sampler, ctypes.byref(array))
        left = {array.data[i].id: array.data[i].logit for i in range(array.size)}
        chosen = array.data[array.selected].id if array.selected >= 0 else None
        return Left({token: logit for token, logit in left.items() if logit > -np.inf}, chosen)
