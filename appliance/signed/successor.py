"""The document that names the image which follows: the registers that a TPM will hold under it,
signed. Specification: docs/formats/state-key.md.

The policy pins the authority that signs it; the file may come from any disk.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from cryptography.exceptions import InvalidSignature

from appliance.codec import filekind, strict
from appliance.codec.canonical import canonical
from appliance.errors import PolicyError, about
from appliance.policy import Policy, inputfile
from appliance.transparency import ed25519

FORMAT: Final = "appliance/successor/v1"
DOMAIN: Final = b"appliance/state-successor/v1\n"
MAX_BYTES: Final = 1 << 14
_KEYS, _OWN_KEYS = {"format", "signature", "successor"}, {"appliance", "pcrs"}
_PCRS, _VALUE_BYTES = {str(number): number for number in range(24)}, 32
_COMMAND = "write it with `appliance image successor`"


def message(successor: Any) -> bytes:
    """The bytes that the authority signs."""
    return DOMAIN + canonical(successor)


def parse(data: bytes, policy: Policy) -> dict[int, bytes]:
    """Return the registers in a file that the policy's authority signed for this appliance.

    Raises PolicyError `successor-malformed`, `successor-signature` or `successor-other`.
    """
    named, signature = _form(data)
    authority = "" if policy.state is None or policy.state.successor is None else policy.state.successor.authority
    try:
        ed25519.verify(bytes.fromhex(authority.removeprefix("ed25519:")),
                       bytes.fromhex(signature.removeprefix("ed25519:")), message(named))
    except (InvalidSignature, ValueError):
        raise _wrong(f"not signed by {authority or 'an authority of the policy, which has none'}",
                     "successor-signature", "the authority stands in the policy's `state` block") from None
    if named["appliance"] != policy.appliance.name:
        raise _wrong(f"for {named['appliance']!r}, this is {policy.appliance.name!r}", "successor-other")
    return _registers(named["pcrs"])


def registers_of(policy: Policy, folders: Sequence[Path]) -> dict[int, bytes]:
    """Return the registers of the policy's successor, whose document is looked for in `folders` in
    this order. Empty where there is none.

    Raises PolicyError as `parse` does, or `successor-unreadable`.
    """
    if policy.state is None or policy.state.successor is None:
        return {}
    for folder in folders:
        path = folder / policy.state.successor.document
        if os.path.exists(path):  # noqa: PTH110 - no errors of its own for a folder that fails or a name too long
            with about(path):
                return parse(_read(path), policy)
    return {}


def _read(path: Path) -> bytes:
    try:
        return inputfile.read(path, MAX_BYTES + 1)
    except OSError as error:
        raise _wrong(f"it cannot be read: {error.strerror}", "successor-unreadable") from None


def _form(data: bytes) -> tuple[dict[str, Any], str]:
    """The object of that name in a file, and its signature, both unchecked."""
    if len(data) > MAX_BYTES:
        raise _wrong(f"more than {MAX_BYTES} bytes")
    try:
        value: Any = strict.json_value(data)
    except ValueError:
        raise _wrong(f"not JSON, or a key stands twice{filekind.instead(data)}") from None
    if not isinstance(value, dict) or set(value) != _KEYS or value["format"] != FORMAT:
        raise _wrong(f"expected an object with {', '.join(sorted(_KEYS))}, of the format {FORMAT}")
    named, signature = value["successor"], value["signature"]
    if not isinstance(named, dict) or set(named) != _OWN_KEYS or not isinstance(signature, str):
        raise _wrong(f"its successor is an object with {', '.join(sorted(_OWN_KEYS))}")
    return named, signature


def _registers(values: Any) -> dict[int, bytes]:
    """Registers by number, in ascending order."""
    if not isinstance(values, dict) or not values or not set(values) <= _PCRS.keys():
        raise _wrong("pcrs is an object with numbers from 0 to 23")
    return {_PCRS[name]: _value(name, values[name]) for name in sorted(values, key=int)}


def _value(name: str, text: Any) -> bytes:
    try:
        value = bytes.fromhex(text) if isinstance(text, str) else b""
    except ValueError:
        value = b""
    if len(value) != _VALUE_BYTES or value.hex() != text:
        raise _wrong(f"PCR {name} has not {2 * _VALUE_BYTES} lower-case hexadecimal digits")
    return value


def _wrong(problem: str, code: str = "successor-malformed", hint: str | None = None) -> PolicyError:
    return PolicyError(f"successor: {problem}", code=code, hint=hint or _COMMAND)
