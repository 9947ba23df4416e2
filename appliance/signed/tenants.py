"""The signed list of tenants: who may ask, kept outside of the policy so that a new API key changes
nothing that clients verify. Specification: docs/formats/tenant-list.md.

The policy pins the authority that signs it and the lowest version that is accepted; the file may
come from any disk.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
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

MAX_BYTES, MAX_TENANTS, MAX_TIERS = 4 << 20, 4096, 64
TIME = "%Y-%m-%dT%H:%M:%SZ"
_KEYS, LIST_KEYS = {"format", "list", "signature"}, frozenset({"appliance", "version", "tenants"})
_TENANT_KEYS = frozenset({"name", "role", "models", "api_key_sha256"})
_ROLES = ("user", "auditor", "admin")  # of the first two versions
_SHARES: dict[str, Any] = {"weight": 1, "concurrent_requests": None, "context_length": None}
_QUOTAS = ("requests_per_minute", "tokens_per_minute", "tokens_per_day", "prompt_price", "answer_price")
_SOME_KEY = hashlib.sha256(b"tier").hexdigest()  # a tier is judged as a tenant
_LIMITS = dict.fromkeys((*_SHARES, *_QUOTAS))  # of a tier, and of a tenant of version 3: null stands for the tier's


@dataclass(frozen=True)
class ListVersion:
    """A version of the format. Versions sign in domains of their own."""

    name: str
    domain: bytes
    more: Mapping[str, Any]  # further keys of a tenant, each with its default
    tiers: bool = False

    @property
    def keys(self) -> frozenset[str]:
        """The keys of a tenant."""
        return _TENANT_KEYS | self.more.keys()

    @property
    def list_keys(self) -> frozenset[str]:
        """The keys of a list."""
        return LIST_KEYS | ({"tiers"} if self.tiers else set())


VERSIONS = (
    ListVersion("appliance/tenants/v1", b"appliance/tenant-list/v1\n", {}),
    ListVersion("appliance/tenants/v2", b"appliance/tenant-list/v2\n", _SHARES),
    ListVersion("appliance/tenants/v3", b"appliance/tenant-list/v3\n", {**_LIMITS, "tier": None, "expires": {}}, True))
TIER: Mapping[str, Any] = _LIMITS


@dataclass(frozen=True)
class TenantList:
    """A list that holds for a policy. `version` is None where the tenants stand in the policy
    itself."""

    tenants: tuple[Tenant, ...]
    version: int | None = None
    ends: Mapping[str, int] = field(default_factory=dict)  # of keys, by SHA-256 in hex: seconds since 1970


def wrong(problem: str, code: str = "tenants-malformed", hint: str | None = None) -> PolicyError:
    """Return the error for a list that is not in form."""
    return PolicyError(f"tenant list: {problem}", code=code,
                       hint=hint or "write it with `appliance tenants LIST.json --key KEY.pem -o OUT`")


def decode(data: bytes, keys: Iterable[str], may: Iterable[str] = ()) -> dict[str, Any]:
    """A JSON object with these keys, and `may` with those. Raises PolicyError
    `tenants-malformed`."""
    if len(data) > MAX_BYTES:
        raise wrong(f"{len(data)} bytes, at most {MAX_BYTES}")
    try:
        value = strict.json_value(data)
    except ValueError:
        raise wrong(f"not JSON, or a key stands twice{filekind.instead(data)}") from None
    if not isinstance(value, dict) or set(value) - set(may) != set(keys):
        raise wrong(f"expected an object with {', '.join(sorted(keys))}")
    return value


def _tenant(value: Any, version: ListVersion, tiers: Mapping[str, Mapping[str, Any]]) -> Tenant:
    """A tenant, with its tier's limits where it has none of its own."""
    if not isinstance(value, dict) or set(value) != version.keys:
        raise wrong(f"a tenant is an object with {', '.join(sorted(version.keys))}")
    tier = value.get("tier")
    if tier is not None and (not isinstance(tier, str) or tier not in tiers):
        raise wrong(f"tenant {value['name']}: there is no tier {tier!r}; tiers of the list: "
                    f"{', '.join(tiers) or 'none'}")
    if not version.tiers and value["role"] not in _ROLES:
        raise wrong(f"role: allowed in this version: {', '.join(_ROLES)}")
    own = {name: each for name, each in value.items()
           if each is not None or name not in version.more or version.more[name] is not None}
    return _valid({**(tiers[tier] if tier else {}), **own})


def _valid(values: Mapping[str, Any]) -> Tenant:
    try:
        return Tenant.model_validate({name: each for name, each in values.items() if name not in ("tier", "expires")})
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise wrong(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _tiers(values: Any) -> dict[str, dict[str, Any]]:
    """The limits that each tier of a list sets, by its name."""
    if not isinstance(values, list) or len(values) > MAX_TIERS:
        raise wrong(f"tiers is not a list of at most {MAX_TIERS}")
    if not all(isinstance(each, dict) and set(each) == {"name", *TIER} for each in values):
        raise wrong(f"a tier is an object with {', '.join(sorted({'name', *TIER}))}")
    for each in values:
        _valid({"name": each["name"], "api_key_sha256": [_SOME_KEY], **_set(each)})
    names = [each["name"] for each in values]
    if names != sorted(set(names)):
        raise wrong("tiers are not in ascending order of name, each once")
    return {each["name"]: _set(each) for each in values}


def _set(tier: Mapping[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in tier.items() if name != "name" and each is not None}


def _ends(value: Mapping[str, Any]) -> dict[str, int]:
    """When the keys of a tenant end that have an end, in seconds since 1970."""
    found, keys = value.get("expires", {}), value["api_key_sha256"]
    if not isinstance(found, dict) or not found.keys() <= set(keys):
        raise wrong(f"tenant {value['name']}: expires is not an object whose keys are among its API keys' hashes")
    try:
        return {digest: int(datetime.strptime(time, TIME).replace(tzinfo=UTC).timestamp())
                for digest, time in found.items()}
    except (TypeError, ValueError):
        raise wrong(f"tenant {value['name']}: expires has a time that is not like 2027-01-31T00:00:00Z") from None


def check(listed: Any, form: ListVersion = VERSIONS[0]) -> TenantList:
    """The tenants in the `list` object of a file in that form. Raises PolicyError
    `tenants-malformed`."""
    if not isinstance(listed, dict) or set(listed) != form.list_keys or not isinstance(listed["appliance"], str):
        raise wrong(f"the list is an object with {', '.join(sorted(form.list_keys))}")
    version, values = listed["version"], listed["tenants"]
    if type(version) is not int or not 0 <= version < 1 << 53:
        raise wrong("version is not a whole number from 0 to 2^53 - 1")
    if not isinstance(values, list) or len(values) > MAX_TENANTS:
        raise wrong(f"tenants is not a list of at most {MAX_TENANTS}")
    tiers = _tiers(listed["tiers"]) if form.tiers else {}
    tenants = tuple(_tenant(value, form, tiers) for value in values)
    names = [tenant.name for tenant in tenants]
    if names != sorted(set(names)):
        raise wrong("tenants are not in ascending order of name, each once")
    keys = [digest for tenant in tenants for digest in tenant.api_key_sha256]
    if len(keys) != len(set(keys)):
        raise wrong("an API key stands at two tenants")
    return TenantList(tenants, version, {digest: end for value in values for digest, end in _ends(value).items()})


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
