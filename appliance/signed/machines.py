"""The signed list of machines: whose evidence a verifier takes. Specification:
docs/formats/machine-list.md.

The policy pins the authority that signs it and the lowest version that is accepted. Verifiers and
key brokers hold the file; the appliance has no use for it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance.attestation.case.machine import KINDS, Custody, MachineId, MachineList
from appliance.codec import filekind, strict
from appliance.codec.canonical import canonical
from appliance.errors import PolicyError, about
from appliance.policy import Policy, inputfile
from appliance.transparency import ed25519

FORMAT: Final = "appliance/machines/v1"
DOMAIN: Final = b"appliance/machine-list/v1\n"
MAX_BYTES, MAX_MACHINES, MAX_NOTE = 4 << 20, 8192, 200
LIST_KEYS: Final = frozenset({"appliance", "machines", "version"})
_KEYS, _MACHINE_KEYS = frozenset({"format", "list", "signature"}), frozenset({"custody", "id", "kind", "not_after"})
_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"


def _wrong(problem: str, code: str = "machines-malformed", hint: str | None = None) -> PolicyError:
    return PolicyError(f"machine list: {problem}", code=code,
                       hint=hint or "make it with `appliance machines add`, and sign it with `appliance machines sign`")


def decode(data: bytes, keys: Iterable[str]) -> dict[str, Any]:
    """A JSON object with just these keys. Raises PolicyError `machines-malformed`."""
    if len(data) > MAX_BYTES:
        raise _wrong(f"more than {MAX_BYTES} bytes")
    try:
        value = strict.json_value(data)
    except ValueError:
        raise _wrong(f"not JSON, or a key stands twice{filekind.instead(data)}") from None
    if not isinstance(value, dict) or set(value) != set(keys):
        raise _wrong(f"expected an object with {', '.join(sorted(keys))}{filekind.instead(data)}")
    return value


def time_of(text: Any) -> datetime:
    """The time in a text of the form 2027-01-01T00:00:00Z. Raises PolicyError."""
    try:
        found = datetime.strptime(text, _TIME).replace(tzinfo=UTC)
        if written(found) != text:
            raise ValueError(text)
    except (ValueError, TypeError):
        raise _wrong("not_after is null, or a time such as 2027-01-01T00:00:00Z") from None
    return found


def written(time: datetime) -> str:
    """A time as the list has it."""
    return f"{time.year:04}-{time:%m-%dT%H:%M:%SZ}"


def _note(text: Any) -> str:
    if not isinstance(text, str) or not 1 <= len(text) <= MAX_NOTE:
        raise _wrong(f"custody is a text of 1 to {MAX_NOTE} characters: who holds the machine, and where")
    if any(each < " " or "\x7f" <= each <= "\x9f" or "\ud800" <= each <= "\udfff" for each in text):
        raise _wrong("custody has a control character, or half a character, in it")
    return text


def _id(kind: Any, text: Any) -> MachineId:
    size = KINDS.get(kind) if isinstance(kind, str) else None
    if size is None:
        raise _wrong(f"a kind of machine is one of {', '.join(sorted(KINDS))}")
    try:
        value = bytes.fromhex(text)
    except (ValueError, TypeError):
        value = b""
    if len(value) != size or value.hex() != text:
        raise _wrong(f"{kind}: id is {2 * size} lower-case hex digits", hint="Turin's CHIP_ID is 8 bytes, and then "
                     "zeros" if kind == "chip-id" else None)
    if not any(value):
        raise _wrong(f"{kind}: zeros name no machine")
    return MachineId(kind, value)


def _entry(value: Any) -> tuple[MachineId, Custody]:
    if not isinstance(value, dict) or set(value) != _MACHINE_KEYS:
        raise _wrong(f"a machine is an object with {', '.join(sorted(_MACHINE_KEYS))}")
    until = value["not_after"]
    return (_id(value["kind"], value["id"]),
            Custody(_note(value["custody"]), None if until is None else time_of(until)))


def check(listed: Any) -> MachineList:
    """The machines in the `list` object of a file. Raises PolicyError `machines-malformed`."""
    if not isinstance(listed, dict) or set(listed) != LIST_KEYS or not isinstance(listed["appliance"], str):
        raise _wrong(f"the list is an object with {', '.join(sorted(LIST_KEYS))}")
    version, values = listed["version"], listed["machines"]
    if type(version) is not int or not 0 <= version < 1 << 53:
        raise _wrong("version is not a whole number from 0 to 2^53 - 1")
    if not isinstance(values, list) or len(values) > MAX_MACHINES:
        raise _wrong(f"machines is not a list of at most {MAX_MACHINES}")
    entries = [_entry(value) for value in values]
    ids = [each for each, _ in entries]
    if ids != sorted(set(ids)):
        raise _wrong("machines are not in ascending order of kind and id, each once")
    return MachineList(version, MappingProxyType(dict(entries)))


def message(listed: Any) -> bytes:
    """The bytes that the authority signs: a domain and the canonical form of the list."""
    return DOMAIN + canonical(listed)


def added(listed: Mapping[str, Any], machines: Iterable[MachineId], custody: Custody) -> dict[str, Any]:
    """The list with these machines in it, and the next version unless nothing changes. An entry
    that is there is replaced. Raises PolicyError."""
    until = None if custody.not_after is None else written(custody.not_after)
    there = {(each["kind"], each["id"]): each for each in listed["machines"]}
    for each in machines:
        there[each.kind, each.value.hex()] = {
            "custody": custody.note, "id": each.value.hex(), "kind": each.kind, "not_after": until}
    entries = [there[key] for key in sorted(there)]
    changed = entries != listed["machines"]
    found = {**listed, "machines": entries, "version": listed["version"] + changed}
    check(found)
    return found


def sign(listed: Any, key: Ed25519PrivateKey) -> bytes:
    """The file for a list, signed. Raises PolicyError if the list is not in form."""
    check(listed)
    try:
        signature = f"ed25519:{key.sign(message(listed)).hex()}"
    except ValueError:
        raise _wrong("a text in it has half a character") from None
    return canonical({"format": FORMAT, "list": listed, "signature": signature}) + b"\n"


def opened(data: bytes) -> tuple[dict[str, Any], str]:
    """The `list` object of a file and its signature, of which nothing is believed yet. Raises
    PolicyError `machines-malformed`."""
    value = decode(data, _KEYS)
    if value["format"] != FORMAT or not isinstance(value["signature"], str) or not isinstance(value["list"], dict):
        raise _wrong("its format is not known", hint=f"known: {FORMAT}")
    return value["list"], value["signature"]


def shown(data: bytes) -> tuple[dict[str, Any], bool]:
    """The `list` object of a file, signed or not yet, and whether it has a signature, by whomever.
    Raises PolicyError `machines-malformed`."""
    try:
        value = strict.json_value(data) if len(data) <= MAX_BYTES else None
    except ValueError:
        value = None
    if isinstance(value, dict) and "signature" in value:
        return opened(data)[0], True
    return decode(data, LIST_KEYS), False


def parse(data: bytes, policy: Policy) -> MachineList:
    """The machines in a file that the policy's authority signed for this deployment.

    Raises PolicyError `machines-unused`, `machines-malformed`, `machines-signature`,
    `machines-other`, `machines-version`.
    """
    wanted = policy.tee.evidence.machines
    if wanted is None:
        raise _wrong("the policy demands none, and pins no authority for one", "machines-unused",
                     "it needs `machines { authority = …, list = … }` in tee.evidence of a policy of schema 2")
    listed, signature = opened(data)
    try:
        ed25519.verify(bytes.fromhex(wanted.authority.removeprefix("ed25519:")), _signature(signature), message(listed))
    except (InvalidSignature, ValueError):
        raise _wrong(f"not signed by {wanted.authority}", "machines-signature",
                     "the authority stands in the policy, in tee.evidence.machines") from None
    found = check(listed)
    if listed["appliance"] != policy.appliance.name:
        raise _wrong(f"for {listed['appliance'][:64]!r}, this is {policy.appliance.name!r}", "machines-other")
    if found.version < wanted.min_version:
        raise _wrong(f"version {found.version}, the policy accepts {wanted.min_version} and later", "machines-version",
                     "an older list would let machines in again that were taken out since; get the newest from the "
                     "policy's owner")
    return found


def _signature(text: str) -> bytes:
    """64 bytes, in their one spelling. Raises ValueError."""
    raw = bytes.fromhex(text.removeprefix("ed25519:"))
    if f"ed25519:{raw.hex()}" != text:
        raise ValueError(text)
    return raw


def read(path: Path) -> bytes:
    """A file's bytes. Raises PolicyError `machines-absent`."""
    try:
        return inputfile.read(path, MAX_BYTES + 1)
    except OSError as error:
        raise _wrong(f"{path} cannot be read: {error.strerror}", "machines-absent",
                     "get the signed list from the policy's owner") from None


def machines_of(policy: Policy, folder: Path, given: Path | None = None) -> MachineList | None:
    """The list that a policy demands: in the file that was given, or else in the policy's own
    folder, by the name that the policy has. None if it demands none, or none is there.

    Raises PolicyError as `parse` does, and `machines-absent` for a file that was given.
    """
    wanted = policy.tee.evidence.machines
    path = given if given is not None or wanted is None else folder / wanted.list_file
    if path is None or (given is None and not os.path.exists(path)):  # noqa: PTH110 - no errors for names too long
        return None
    data = read(path)
    with about(path):
        return parse(data, policy)
