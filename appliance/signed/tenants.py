"""The signed list of tenants: who may ask, kept outside of the policy so that a new API key changes
nothing that clients verify. Specification: docs/formats/tenant-list.md.

The policy pins the authority that signs it and the lowest version that is accepted; the file may
come from any disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from pydantic import ValidationError

from appliance.codec import filekind, strict
from appliance.codec.canonical import canonical
from appliance.errors import PolicyError, about
from appliance.policy import Policy, inputfile
from appliance.policy.schema import Tenant
from appliance.transparency import ed25519

MAX_BYTES, MAX_TENANTS = 4 << 20, 4096
_KEYS, _LIST_KEYS = {"format", "list", "signature"}, {"appliance", "version", "tenants"}
_TENANT_KEYS = {"name", "role", "models", "api_key_sha256"}
MORE: dict[str, int | None] = {"weight": 1, "concurrent_requests": None, "context_length": None}  # of version 2


@dataclass(frozen=True)
class ListVersion:
    """A version of the format. Versions sign in domains of their own."""

    name: str
    domain: bytes
    keys: frozenset[str]  # of a tenant


VERSIONS = (
    ListVersion("appliance/tenants/v1", b"appliance/tenant-list/v1\n", frozenset(_TENANT_KEYS)),
    ListVersion("appliance/tenants/v2", b"appliance/tenant-list/v2\n", frozenset(_TENANT_KEYS | MORE.keys())))


@dataclass(frozen=True)
class TenantList:
    """A list that holds for a policy. `version` is None where the tenants stand in the policy
    itself."""

    tenants: tuple[Tenant, ...]
    version: int | None = None


def wrong(problem: str, code: str = "tenants-malformed", hint: str | None = None) -> PolicyError:
    """Return the error for a list that is not in form."""
    return PolicyError(f"tenant list: {problem}", code=code,
                       hint=hint or "write it with `appliance tenants LIST.json --key KEY.pem -o OUT`")


def decode(data: bytes, keys: set[str]) -> dict[str, Any]:
    """A JSON object with just these keys. Raises PolicyError `tenants-malformed`."""
    if len(data) > MAX_BYTES:
        raise wrong(f"{len(data)} bytes, at most {MAX_BYTES}")
    try:
        value = strict.json_value(data)
    except ValueError:
        raise wrong(f"not JSON, or a key stands twice{filekind.instead(data)}") from None
    if not isinstance(value, dict) or set(value) != keys:
        raise wrong(f"expected an object with {', '.join(sorted(keys))}")
    return value


def _tenant(value: Any, version: ListVersion) -> Tenant:
    if not isinstance(value, dict) or set(value) != version.keys:
        raise wrong(f"a tenant is an object with {', '.join(sorted(version.keys))}")
    try:
        absent = {name for name, default in MORE.items() if default is None and value.get(name) is None}
        return Tenant.model_validate({name: each for name, each in value.items() if name not in absent})
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise wrong(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def check(listed: Any, form: ListVersion = VERSIONS[0]) -> TenantList:
    """The tenants in the `list` object of a file in that form. Raises PolicyError
    `tenants-malformed`."""
    if not isinstance(listed, dict) or set(listed) != _LIST_KEYS or not isinstance(listed["appliance"], str):
        raise wrong(f"the list is an object with {', '.join(sorted(_LIST_KEYS))}")
    version, values = listed["version"], listed["tenants"]
    if type(version) is not int or not 0 <= version < 1 << 53:
        raise wrong("version is not a whole number from 0 to 2^53 - 1")
    if not isinstance(values, list) or len(values) > MAX_TENANTS:
        raise wrong(f"tenants is not a list of at most {MAX_TENANTS}")
    tenants = tuple(_tenant(value, form) for value in values)
    names = [tenant.name for tenant in tenants]
    if names != sorted(set(names)):
        raise wrong("tenants are not in ascending order of name, each once")
    keys = [digest for tenant in tenants for digest in tenant.api_key_sha256]
    if len(keys) != len(set(keys)):
        raise wrong("an API key stands at two tenants")
    return TenantList(tenants, version)


def message(listed: Any, form: ListVersion = VERSIONS[0]) -> bytes:
    """The bytes that the authority signs: a domain and the canonical form of the list."""
    return form.domain + canonical(listed)


def parse(data: bytes, policy: Policy) -> TenantList:
    """The tenants in a file that the policy's authority signed for this deployment.

    Raises PolicyError `tenants-malformed`, `tenants-signature`, `tenants-other`, `tenants-version`.
    """
    value = decode(data, _KEYS)
    form = next((each for each in VERSIONS if each.name == value["format"]), None)
    if form is None or not isinstance(value["signature"], str):
        raise wrong("its format is not known", hint=f"known: {', '.join(each.name for each in VERSIONS)}")
    listed, authority = value["list"], policy.tenants.authority
    if authority is None:
        raise wrong("the policy pins no authority: its tenants stand in it", "tenants-signature",
                     "a signed list needs `authority` and `list` in the policy's `tenants` block")
    try:
        ed25519.verify(bytes.fromhex(authority.removeprefix("ed25519:")),
                       bytes.fromhex(value["signature"].removeprefix("ed25519:")), message(listed, form))
    except (InvalidSignature, ValueError):
        raise wrong(f"not signed by {authority}", "tenants-signature",
                     "the authority stands in the policy's `tenants` block") from None
    found = check(listed, form)
    if listed["appliance"] != policy.appliance.name:
        raise wrong(f"for {listed['appliance']!r}, this is {policy.appliance.name!r}", "tenants-other")
    if found.version is None or found.version < policy.tenants.min_version:
        raise wrong(f"version {found.version}, the policy accepts {policy.tenants.min_version} and later",
                     "tenants-version", "an older list would let revoked keys in again")
    _models(found.tenants, policy)
    return found


def newer(data: bytes, policy: Policy, held: TenantList) -> TenantList:
    """The tenants in a file that is to take the place of those in force.

    Raises PolicyError as `parse` does, and `tenants-version` for a list that is not newer.
    """
    found, least = parse(data, policy), 0 if held.version is None else held.version + 1
    if found.version is None or found.version < least:
        raise wrong(f"version {found.version}, and version {held.version} is in force", "tenants-version",
                     f"sign it as version {least} or later: an older list would let revoked keys in again")
    return found


def _models(tenants: Iterable[Tenant], policy: Policy) -> None:
    known = {model.name for model in policy.models}
    for tenant in tenants:
        absent = sorted(set(tenant.models) - known)
        if absent:
            raise wrong(f'tenant {tenant.name}: there is no model "{absent[0]}"', "tenants-other",
                         f"models of this policy: {', '.join(sorted(known))}")


def read(path: Path) -> bytes:
    """A file's bytes. Raises PolicyError `tenants-absent`."""
    try:
        return inputfile.read(path, MAX_BYTES + 1)
    except OSError as error:
        raise wrong(f"{path} cannot be read: {error.strerror}", "tenants-absent") from None


def tenants_of(policy: Policy, folders: Sequence[Path]) -> TenantList:
    """The policy's tenants: those in it, or those of its list, looked for in `folders` in this
    order.

    Raises PolicyError as `parse` does, and `tenants-absent`.
    """
    if policy.tenants.authority is None or policy.tenants.list_file is None:
        return TenantList(policy.tenants.tenants)
    for folder in folders:
        path = folder / policy.tenants.list_file
        if os.path.exists(path):  # noqa: PTH110 - no errors of its own for a folder that fails or a name too long
            data = read(path)
            with about(path):
                return parse(data, policy)
    raise wrong(f"{policy.tenants.list_file} is in none of {', '.join(map(str, folders))}", "tenants-absent",
                 "put the signed list beside the policy, or on the disk with the models")
