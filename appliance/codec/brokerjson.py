"""JSON and base64 from a key broker, read strictly: no key twice, no key unknown, one spelling of
every byte string.

Nothing secret passes through here: what is secret is still encrypted where it is JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from appliance.codec import strict
from appliance.errors import ModelKeyError

CODE = "key-broker-answer"
_MAX_DEPTH_BYTES = 1 << 16  # an answer is no longer than this, so that nesting cannot exhaust the stack


def refuse(what: str) -> ModelKeyError:
    """The error for an answer that is not what the protocol says."""
    return ModelKeyError(f"the key broker's answer: {what}", code=CODE,
                         hint="is it a broker of the KBS protocol, as docs/formats/key-release.md has it?")


def parse(data: bytes | bytearray, what: str) -> dict[str, Any]:
    """A JSON object in UTF-8. ModelKeyError naming `what` for anything else."""
    if len(data) > _MAX_DEPTH_BYTES:
        raise refuse(f"{what} has {len(data)} bytes, at most {_MAX_DEPTH_BYTES} are allowed")
    try:
        value = strict.json_value(bytes(data))
    except ValueError:
        raise refuse(f"{what} is not JSON, or has a key twice") from None
    if not isinstance(value, dict):
        raise refuse(f"{what} is no JSON object")
    return value


def strings(value: Any, what: str, required: Collection[str]) -> dict[str, str]:
    """An object with exactly these keys, all of them strings. ModelKeyError naming `what` and the
    key."""
    if not isinstance(value, dict):
        raise refuse(f"{what} is no JSON object")
    for key in sorted(set(required) ^ set(value)):
        shown = key if key in required else repr(key[:32])
        raise refuse(f"{what}: {shown} is {'absent' if key in required else 'not known'}")
    for key, entry in value.items():
        if not isinstance(entry, str):
            raise refuse(f"{what}: {key} is no string")
    return value


def base64url(text: str, what: str, sizes: range) -> bytes:
    """Bytes from base64url without padding (RFC 7515, section 2), unused bits zero; their number
    lies in `sizes`."""
    return _sized(text, what, sizes, strict.base64url, "base64url")


def base64_padded(text: str, what: str, sizes: range) -> bytes:
    """Bytes from base64 with padding (RFC 4648, section 4), unused bits zero; their number lies in
    `sizes`."""
    return _sized(text, what, sizes, strict.base64, "base64")


def _sized(text: str, what: str, sizes: range, decode: Callable[[str], bytes], name: str) -> bytes:
    try:
        data = decode(text)
    except strict.SpellingError:
        raise refuse(f"{what} has another spelling than its own bytes do") from None
    except ValueError:
        raise refuse(f"{what} is not {name}") from None
    if len(data) not in sizes:
        raise refuse(f"{what} has {len(data)} bytes")
    return data
