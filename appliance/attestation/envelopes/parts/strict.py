"""Members of a JSON envelope, each in the one spelling that its writer gives it. Raises
MalformedEvidenceError."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from appliance.codec import strict
from appliance.errors import MalformedEvidenceError, UnsupportedEvidenceError

MAX_BYTES, MAX_MEMBER_BYTES, MAX_ITEMS = 1 << 22, 1 << 21, 1 << 16
Members = Mapping[str, Any]


def members(data: bytes) -> tuple[Members, bytes] | None:
    """The JSON object that `data` begins with, and the bytes behind it; None where none is read.

    White space and zeros behind the object are padding.
    """
    if len(data) > MAX_BYTES or data.lstrip()[:1] != b"{":
        return None
    text = data.lstrip().decode("utf-8", "surrogateescape")
    try:
        value, end = strict.INTEGERS.raw_decode(text)
        text[:end].encode()
    except (ValueError, RecursionError):  # UnicodeEncodeError is a ValueError
        return None
    tail = text[end:].encode("utf-8", "surrogateescape")
    return value, tail if tail.strip(b" \t\r\n\0") else b""


def only(found: Members, known: Iterable[str], what: str) -> None:
    """Raise UnsupportedEvidenceError if there is a member that this format has not."""
    other = sorted(set(found) - set(known))
    if other:
        raise UnsupportedEvidenceError(f"{what}: its member {other[0][:40]!r} is not known, so its version is another",
                                       code="envelope-member", hint="take the report or quote out and examine that")


def text(found: Members, name: str, what: str) -> str:
    """A member that is text."""
    value = found.get(name)
    if not isinstance(value, str):
        raise MalformedEvidenceError(f"{what}: {name} is not text")
    return value


def mapping(found: Members, name: str, what: str) -> Members:
    """A member that is an object."""
    value = found.get(name)
    if not isinstance(value, dict):
        raise MalformedEvidenceError(f"{what}: {name} is not an object")
    return value


def number(found: Members, name: str, bits: int, what: str) -> int:
    """A member that is an unsigned integer of so many bits."""
    value = found.get(name)
    if type(value) is not int or not 0 <= value < 1 << bits:
        raise MalformedEvidenceError(f"{what}: {name} is not an unsigned integer of {bits} bits")
    return value


def items(found: Members, name: str, most: int, what: str) -> list[Any]:
    """A member that is a list of at most so many items."""
    value = found.get(name)
    if not isinstance(value, list) or len(value) > most:
        raise MalformedEvidenceError(f"{what}: {name} is not a list of at most {most} items")
    return value


def octets(value: object, what: str) -> bytes:
    """Bytes written as a list of numbers, as serde writes them."""
    if not isinstance(value, list) or len(value) > MAX_ITEMS or not all(
            type(each) is int and 0 <= each < 256 for each in value):
        raise MalformedEvidenceError(f"{what} is not a list of bytes, 0 to 255")
    return bytes(value)


def octets_in_base64(value: object, what: str) -> bytes:
    """Bytes in base64 (RFC 4648) in either alphabet: that of section 4 with its padding, or that of
    section 5 with the whole padding or without any. Writers in Go and Rust differ."""
    if not isinstance(value, str) or not set("-_").isdisjoint(value):
        return _base64(value, what, lambda text: strict.base64url(text, padded=text.endswith("=")), "base64url")
    if len(value) % 4 in (2, 3) and set("+/=").isdisjoint(value):
        return _base64(value, what, strict.base64url, "base64")
    return _base64(value, what, strict.base64, "base64")


def _base64(value: object, what: str, decode: Callable[[str], bytes], name: str) -> bytes:
    if not isinstance(value, str) or not value.isascii() or len(value) > 2 * MAX_MEMBER_BYTES:
        raise MalformedEvidenceError(f"{what} is not {name} of at most {MAX_MEMBER_BYTES} bytes")
    try:
        decoded = decode(value)
    except strict.SpellingError:
        decoded = None
    except ValueError:
        raise MalformedEvidenceError(f"{what} is not {name}") from None
    if decoded is None or len(decoded) > MAX_MEMBER_BYTES:
        raise MalformedEvidenceError(f"{what} is not {name} in its one spelling, with padding")
    return decoded


def hexadecimal(value: object, what: str) -> bytes:
    """Bytes in hex, lower case."""
    if not isinstance(value, str) or len(value) > 2 * MAX_MEMBER_BYTES:
        raise MalformedEvidenceError(f"{what} is not hex of at most {MAX_MEMBER_BYTES} bytes")
    try:
        decoded = bytes.fromhex(value)
    except ValueError:
        raise MalformedEvidenceError(f"{what} is not hex") from None
    if decoded.hex() != value:
        raise MalformedEvidenceError(f"{what} is not hex in its one spelling, lower case without spaces")
    return decoded
