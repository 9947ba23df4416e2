"""Plain twins of the key-value cache's formats: the bytes of a block, and what they stand for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
F32 = np.float32
BLOCK = 64  # positions
_MIXED = {"q8q4": ("q8", "q4")}


def form(kind: str, *, keys: bool) -> str:
    """The format of keys, or of values, in a cache of this kind."""
    return _MIXED.get(kind, (kind, kind))[0 if keys else 1]


def _finite(x: Floats) -> Floats:
    return np.clip(np.where(np.isnan(x), F32(-65504), x), F32(-65504), F32(65504)).astype(F32)


def quantised(kind: str, x: Floats) -> tuple[NDArray[np.float16], NDArray[np.int32]]:
    """Scales (positions, groups) and quants (positions, groups, 32) of x (positions, elements), as Q8_0 and Q4_0."""
    x = _finite(x)
    groups = np.pad(x, ((0, 0), (0, -x.shape[1] % 32))).reshape(len(x), -1, 32)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        if kind == "q8":
            most, limit = np.abs(groups).max(axis=-1), F32(127)
        else:
            high, low = groups.max(axis=-1), groups.min(axis=-1)
            most, limit = np.where(high > -low, high, low), F32(-8)
        scales = (most / limit).astype(np.float16)
        factor = np.where(scales != 0, limit / most, F32(0)).astype(F32)
        quants = np.rint(groups * factor[..., None])
    return scales, quants.clip(-8 if kind == "q4" else -127, 7 if kind == "q4" else 127).astype(np.int32)


def decoded(kind: str, x: Floats) -> Floats:
    """Return x (positions, elements) as the cache keeps it."""
    if kind == "f16":
        return _finite(x).astype(np.float16).astype(F32)
    scales, quants = quantised(kind, x)
    values = scales.astype(F32)[..., None] * quants.astype(F32)
    return np.ascontiguousarray(values.reshape(len(x), -1)[:, :x.shape[1]])


def query(kind: str, x: Floats) -> NDArray[np.float64]:
    """Return the values of query rows (rows, elements): 8 bits with a float32 scale, or
    themselves."""
    if kind == "f16":
        return x.astype(np.float64)
    return _query(x)[0].reshape(len(x), -1)[:, :x.shape[1]]


def _query(x: Floats) -> tuple[NDArray[np.float64], NDArray[np.int32], Floats]:
    groups = np.pad(x, ((0, 0), (0, -x.shape[1] % 32))).reshape(len(x), -1, 32)
    amax = np.abs(groups).max(axis=-1)
    with np.errstate(divide="ignore"):
        factor = np.where(amax > 0, F32(127) / amax, F32(0)).astype(F32)
    quants = np.rint(groups * factor[..., None]).clip(-127, 127).astype(np.int32)
    scales = amax / F32(127)
    return quants * scales.astype(np.float64)[..., None], quants, scales


def query_bytes(x: Floats) -> bytes:
    """Query rows after `query_q8`: groups of 64 bytes at the start of each row, the floats they were behind them."""
    _, quants, scales = _query(x)
    groups = np.zeros((*scales.shape, 64), np.uint8)
    rows = np.ascontiguousarray(x).view(np.uint8).copy()
    groups[:] = rows[:, :64 * scales.shape[1]].reshape(groups.shape)
    groups[..., :32] = quants.astype(np.int8).view(np.uint8)
    groups[..., 32:36] = np.ascontiguousarray(scales)[..., None].view(np.uint8)
    groups[..., 36:40] = (-8 * quants.sum(axis=-1, dtype=np.int32))[..., None].view(np.uint8)
    rows[:, :64 * scales.shape[1]] = groups.reshape(len(x), -1)
    return rows.tobytes()


def blocks(kind: str, x: Floats, *, keys: bool, values: Floats | None = None) -> NDArray[np.uint8]:
    """(blocks, bytes): x (positions, elements) as the cache has it; bytes behind the end are zero.
    Keys are marked by NaN where they, or the `values` that belong to them, are not finite."""
    finite = np.isfinite(x).all(axis=1) & np.isfinite(x if values is None else values).all(axis=1)
    positions = -(-len(x) // BLOCK) * BLOCK
    found = []
    for first in range(0, positions, BLOCK):
        piece = x[first:first + BLOCK]
        data = bytearray(_block(kind, piece, keys))
        if keys:
            _mark(kind, data, ~finite[first:first + BLOCK])
        found.append(np.frombuffer(data, np.uint8))
    return np.stack(found)


def _mark(kind: str, block: bytearray, wrong: NDArray[np.bool_]) -> None:
    """NaN for the first element of wrong positions, or for the scale of the first group."""
    halves = np.frombuffer(block, np.float16)
    for position in np.flatnonzero(wrong):
        halves[position if kind != "f16" else position // 16 * (len(halves) // 4) + position % 16] = np.nan


def _block(kind: str, x: Floats, keys: bool) -> bytes:
    missing = ((0, BLOCK - len(x)), (0, 0))
    if kind == "f16":
        halves = np.pad(decoded(kind, x).astype(np.float16), missing)
        return (halves.reshape(4, 16, -1).swapaxes(1, 2) if keys else halves).tobytes()
    scales, quants = quantised(kind, x)
    count = scales.shape[1]
    if kind == "q8":
        data = quants.astype(np.int8).view(np.uint8) ^ np.uint8(128 if keys else 0)
    else:
        data = ((quants[..., :16] + 8) | (quants[..., 16:] + 8) << 4).astype(np.uint8)
    data = np.pad(data, (*missing, (0, 0)))
    if keys:  # 16 positions, groups, words of 4 -> words of 16 positions beside each other
        data = data.reshape(4, 16, count, -1, 4).transpose(0, 2, 3, 1, 4)
    return np.pad(scales, missing).T.tobytes() + data.tobytes()
