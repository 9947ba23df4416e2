"""Float32 weights to block formats: the gguf package where it can, plain ones of our own where it cannot.

Ours choose scales from the extremes of a sub-block and do not search for better ones. They use only element-wise
operations and maxima, so the same weights give the same bytes on every machine.
"""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from appliance.models.file.quants import FORMATS, layout

Floats = NDArray[np.float32]
_F32 = np.float32


def quantise(name: str, weights: Floats) -> bytes:
    """Rows of float32 weights as GGUF rows of the format `name`."""
    weights = np.ascontiguousarray(weights, np.float32)
    if name in _OWN:
        blocks = _OWN[name](weights.reshape(-1, FORMATS[name].elements))
        return blocks.tobytes()
    return np.ascontiguousarray(gguf.quantize(weights, gguf.GGMLQuantizationType[name])).tobytes()


def _empty(name: str, count: int) -> NDArray[Any]:
    return np.zeros(count, layout(FORMATS[name]))


def _half(values: Floats) -> tuple[NDArray[np.float16], Floats]:
    """A scale as stored, and as it will be read."""
    stored = values.astype(np.float16)
    return stored, stored.astype(_F32)


def _ratio(values: Floats, by: Floats) -> Floats:
    """values / by, 0 where `by` is 0."""
    return np.divide(values, by, out=np.zeros_like(values), where=np.broadcast_to(by, values.shape) != 0)


def _q8_1(x: Floats) -> NDArray[Any]:
    blocks = _empty("Q8_1", len(x))
    blocks["d"], d = _half(np.abs(x).max(axis=1) / _F32(127))
    blocks["qs"] = np.clip(np.rint(_ratio(x, d[:, None])), -127, 127)
    blocks["s"] = d * blocks["qs"].astype(_F32).sum(axis=1)
    return blocks


def _with_minima(x: Floats, groups: int, scale_top: int, top: int) -> tuple[Any, Any, Any, Any, Any]:
    """Cut (n, 256) into `groups`; d, dmin, scales and minima (0..scale_top), values (0..top), for d*s*q - dmin*m."""
    x = x.reshape(len(x), groups, -1)
    low = np.minimum(x.min(axis=2), _F32(0))
    scale = (x.max(axis=2) - low) / _F32(top)
    d_stored, d = _half(scale.max(axis=1) / _F32(scale_top))
    m_stored, m = _half((-low).max(axis=1) / _F32(scale_top))
    scales = np.clip(np.rint(_ratio(scale, d[:, None])), 0, scale_top)
    minima = np.clip(np.rint(_ratio(-low, m[:, None])), 0, scale_top)
    step = (d[:, None] * scales)[:, :, None]
    q = np.clip(np.rint(_ratio(x + (m[:, None] * minima)[:, :, None], step)), 0, top)
    return d_stored, m_stored, scales.astype(np.uint8), minima.astype(np.uint8), q.astype(np.uint8)


def _pack(values: NDArray[np.uint8], runs: int, bits: int) -> NDArray[np.uint8]:
    """(n, 256) small values to (n, runs * w) bytes: each run of 8 // bits planes of w values shares its w bytes."""
    planes = values.reshape(len(values), runs, 8 // bits, -1)
    out = np.zeros((len(values), runs, planes.shape[3]), np.uint8)
    for index in range(8 // bits):
        out |= planes[:, :, index] << np.uint8(index * bits)
    return out.reshape(len(values), -1)


def _q2_k(x: Floats) -> NDArray[Any]:
    blocks = _empty("Q2_K", len(x))
    blocks["d"], blocks["dmin"], scales, minima, q = _with_minima(x, 16, 15, 3)
    blocks["scales"] = scales | minima << np.uint8(4)
    blocks["qs"] = _pack(q.reshape(-1, 256), 2, 2)
    return blocks


def _pack_scale_min(scales: NDArray[np.uint8], minima: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(n, 8) six-bit scales and minima to 12 bytes."""
    high_s, high_m = scales[:, 4:] >> np.uint8(4), minima[:, 4:] >> np.uint8(4)
    return np.concatenate([scales[:, :4] | high_s << np.uint8(6), minima[:, :4] | high_m << np.uint8(6),
                           scales[:, 4:] & 15 | (minima[:, 4:] & 15) << np.uint8(4)], axis=1)


def _q4_k(x: Floats) -> NDArray[Any]:
    blocks = _empty("Q4_K", len(x))
    blocks["d"], blocks["dmin"], scales, minima, q = _with_minima(x, 8, 63, 15)
    blocks["scales"] = _pack_scale_min(scales, minima)
    blocks["qs"] = _pack(q.reshape(-1, 256), 4, 4)
    return blocks


def _q5_k(x: Floats) -> NDArray[Any]:
    blocks = _empty("Q5_K", len(x))
    blocks["d"], blocks["dmin"], scales, minima, q = _with_minima(x, 8, 63, 31)
    blocks["scales"] = _pack_scale_min(scales, minima)
    blocks["qs"] = _pack(q.reshape(-1, 256) & 15, 4, 4)
    blocks["qh"] = _pack(q.reshape(-1, 256) >> np.uint8(4), 1, 1)
    return blocks


def _centred(x: Floats, scale_top: int, top: int) -> tuple[Any, Any, Any]:
    """Cut (n, 256) into 16 groups; d, signed scales, values (-top..top - 1) for d*s*q."""
    x = x.reshape(len(x), 16, 16)
    extreme = np.take_along_axis(x, np.abs(x).argmax(axis=2)[:, :, None], axis=2)[:, :, 0]
    scale = extreme / _F32(-top)
    stored, d = _half(np.abs(scale).max(axis=1) / _F32(scale_top))
    scales = np.clip(np.rint(_ratio(scale, d[:, None])), -scale_top, scale_top)
    q = np.clip(np.rint(_ratio(x, (d[:, None] * scales)[:, :, None])), -top, top - 1)
    return stored, scales.astype(np.int8), q.astype(np.int8).reshape(-1, 256)


def _q3_k(x: Floats) -> NDArray[Any]:
    blocks = _empty("Q3_K", len(x))
    blocks["d"], scales, q = _centred(x, 31, 4)
    low = (q + np.int8(4)).astype(np.uint8)  # 0..7
    blocks["qs"] = _pack(low & 3, 2, 2)
    blocks["hmask"] = _pack(low >> np.uint8(2), 1, 1)
    six = (scales + np.int8(32)).astype(np.uint8)  # (n, 16), 1..63
    blocks["scales"][:, :8] = six[:, :8] & 15 | (six[:, 8:] & 15) << np.uint8(4)
    high = (six >> np.uint8(4)).reshape(-1, 4, 4)
    blocks["scales"][:, 8:] = (high << np.array([0, 2, 4, 6], np.uint8)[:, None]).sum(axis=1)
    return blocks


def _q6_k(x: Floats) -> NDArray[Any]:
    blocks = _empty("Q6_K", len(x))
    blocks["d"], blocks["scales"], q = _centred(x, 127, 32)
    six = (q + np.int8(32)).astype(np.uint8)
    blocks["ql"] = _pack(six & 15, 2, 4)
    blocks["qh"] = _pack(six >> np.uint8(4), 2, 2)
    return blocks


_IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], _F32)


def _nearest_iq4(values: Floats) -> NDArray[np.uint8]:
    """(..., 32) as nibbles (..., 16): the first 16 low, the others high."""
    q = np.abs(values[..., None] - _IQ4).argmin(axis=-1).astype(np.uint8)
    return q[..., :16] | q[..., 16:] << np.uint8(4)


def _iq4_nl(x: Floats) -> NDArray[Any]:
    blocks = _empty("IQ4_NL", len(x))
    blocks["d"], d = _half(np.abs(x).max(axis=1) / _F32(113))
    blocks["qs"] = _nearest_iq4(_ratio(x, d[:, None]))
    return blocks


def _iq4_xs(x: Floats) -> NDArray[Any]:
    blocks, parts = _empty("IQ4_XS", len(x)), x.reshape(-1, 8, 32)
    wanted = np.abs(parts).max(axis=2) / _F32(113)
    blocks["d"], d = _half(wanted.max(axis=1) / _F32(31))
    scales = np.clip(np.rint(_ratio(wanted, d[:, None])), 0, 31)
    blocks["qs"] = _nearest_iq4(_ratio(parts, (d[:, None] * scales)[..., None])).reshape(len(x), -1)
    stored = scales.astype(np.uint16) + np.uint16(32)
    blocks["scales_l"] = (stored[:, ::2] & 15) | (stored[:, 1::2] & 15) << 4
    blocks["scales_h"] = ((stored >> 4) << (2 * np.arange(8, dtype=np.uint16))).sum(axis=1)
    return blocks


_OWN = {"Q8_1": _q8_1, "Q2_K": _q2_k, "Q3_K": _q3_k, "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k,
        "IQ4_NL": _iq4_nl, "IQ4_XS": _iq4_xs}
