"""Just enough CBOR (RFC 8949) to write evidence in certificates, and receipts: integers, byte and
text strings, arrays, and maps with text or integer keys, in the deterministic form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

UNSIGNED, NEGATIVE, BYTES, TEXT, ARRAY, MAP, TAG = range(7)


Encoded = int | bytes | str | Sequence["Encoded"] | Mapping[int | str, "Encoded"]


def encode(value: Encoded) -> bytes:
    """The deterministic form (RFC 8949, section 4.2.1) of an integer, a string, or an array or map
    of those."""
    if isinstance(value, int):
        return _head(UNSIGNED, value) if value >= 0 else _head(NEGATIVE, -1 - value)
    if isinstance(value, Mapping):
        pairs = sorted((encode(key), encode(each)) for key, each in value.items())
        return _head(MAP, len(pairs)) + b"".join(key + each for key, each in pairs)
    if isinstance(value, bytes):
        return _head(BYTES, len(value)) + value
    if isinstance(value, str):
        return _head(TEXT, len(value.encode())) + value.encode()
    return _head(ARRAY, len(value)) + b"".join(encode(item) for item in value)


def _head(major: int, number: int) -> bytes:
    if number < 24:
        return bytes((major << 5 | number,))
    width = next(power for power in range(4) if number < 1 << (8 << power))
    return bytes((major << 5 | 24 + width,)) + number.to_bytes(1 << width, "big")
