"""The caller: an API key to a tenant, in constant time over all keys.

A key is never stored: the policy holds its SHA-256. The presented key's SHA-256 is compared with
every one of them without leaving early. So neither the time nor the order tells how close a guess
came. Keys are random (`appliance key new`), so a plain hash is enough: there is no weak key to
guess.

A newer list of tenants may take the place of the one in force. Each generation under way is then
reviewed: one whose key, tenant or model is not in the list ends.

A key may have an end. From then on it is refused; a request that came before is answered. The time
is the host's, or a timestamp authority's where that is later.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from appliance import hostclock
from appliance.api.problems import RequestError
from appliance.policy.schema import Tenant

MAX_KEY_BYTES = 512

# ask models; read one's own usage; read metrics; read the log and all usage; change models, tenants
Right = Literal["ask", "count", "scrape", "watch", "change"]
RIGHTS: dict[str, frozenset[Right]] = {
    "user": frozenset({"ask", "count"}), "auditor": frozenset({"count", "scrape", "watch"}),
    "admin": frozenset({"ask", "count", "scrape", "watch", "change"}), "metrics": frozenset({"scrape"}),
}


@dataclass(frozen=True)
class Caller:
    """A tenant, by one of its keys; limits are counted for each key."""

    tenant: Tenant
    key_digest: bytes = field(repr=False)  # SHA-256, 32 bytes

    @property
    def name(self) -> str:
        """The tenant's name in the policy."""
        return self.tenant.name

    def may(self, right: Right) -> bool:
        """Whether the caller's role has a right."""
        return right in RIGHTS[self.tenant.role]

    def require(self, right: Right) -> None:
        """Refuse a caller whose role does not have a right."""
        if not self.may(right):
            raise RequestError("permission_denied")

    def may_ask(self, model: str) -> bool:
        """Whether the policy allows this tenant a model."""
        return model in self.tenant.models


class Roster:
    """The tenants who may ask now. Without any, no key is valid. It belongs to the event loop."""

    def __init__(self, tenants: Iterable[Tenant], ends: Mapping[str, int] | None = None,
                 now: Callable[[], float] = hostclock.seconds) -> None:
        self._reviews: set[Callable[[], None]] = set()  # of generations under way
        self._now = now
        self.replace(tenants, ends or {})

    def replace(self, tenants: Iterable[Tenant], ends: Mapping[str, int]) -> None:
        """Let these be the tenants from now on. `ends`: when keys end, in seconds since 1970, by
        their SHA-256 in hex."""
        self._ends = {bytes.fromhex(digest): end for digest, end in ends.items()}
        self._known = tuple(
            (bytes.fromhex(digest), tenant) for tenant in tenants for digest in tenant.api_key_sha256)

    def enter(self, review: Callable[[], None]) -> Callable[[], None]:
        """Have a generation reviewed whenever the tenants were replaced; returns what ends that."""
        self._reviews.add(review)
        return lambda: self._reviews.discard(review)

    def review(self) -> None:
        """Review all generations under way."""
        for review in tuple(self._reviews):
            review()

    def current(self, caller: Caller, model: str | None = None) -> Caller:
        """The caller, as the tenants are now. RequestError where its key is valid no more, or is
        another tenant's, or where it may not ask `model` any more."""
        tenant = next((tenant for known, tenant in self._known if known == caller.key_digest), None)
        if tenant is None or tenant.name != caller.name:
            raise RequestError("invalid_api_key", "the API key was revoked")
        if model is not None and ("ask" not in RIGHTS[tenant.role] or model not in tenant.models):
            raise RequestError("model_not_found", "the API key may not use the model any more", param="model")
        return Caller(tenant, caller.key_digest)

    @property
    def names(self) -> dict[bytes, str]:
        """The tenant's name of every key that is valid, by the key's SHA-256."""
        return {known: tenant.name for known, tenant in self._known}

    @property
    def keys(self) -> frozenset[bytes]:
        """SHA-256 of every key that is valid."""
        return frozenset(known for known, _ in self._known)

    @property
    def next_ends(self) -> dict[str, int]:
        """When the first of a tenant's keys ends that has not ended yet, by name."""
        now, found = self._now(), dict[str, int]()
        for digest, name in self.names.items():
            if (end := self._ends.get(digest)) is not None and end > now:
                found[name] = min(end, found.get(name, end))
        return found

    @property
    def askers(self) -> frozenset[str]:
        """Names of tenants who may ask some model."""
        return frozenset(tenant.name for _, tenant in self._known if tenant.models and "ask" in RIGHTS[tenant.role])

    def askers_of(self, model: str) -> frozenset[str]:
        """Names of tenants who may ask a model."""
        return frozenset(tenant.name for _, tenant in self._known
                         if model in tenant.models and "ask" in RIGHTS[tenant.role])

    @property
    def weights(self) -> dict[str, int]:
        """The weight of each tenant, by name."""
        return {tenant.name: tenant.weight for _, tenant in self._known}

    @property
    def places(self) -> dict[str, int]:
        """Most requests in progress of those tenants that have a limit of their own, by name."""
        return {tenant.name: tenant.concurrent_requests for _, tenant in self._known
                if tenant.concurrent_requests is not None}

    def authenticate(self, authorization: str | None, api_key: str | None = None) -> Caller:
        """The caller whose key an `Authorization: Bearer KEY` header presents, or an `X-Api-Key:
        KEY` header, which is Anthropic's; RequestError if there is none, or two."""
        scheme, _, key = (f"Bearer {api_key or ''}" if authorization is None else authorization).partition(" ")
        if authorization is not None and api_key is not None and key.strip() != api_key.strip():
            raise RequestError("malformed_request", "Authorization and X-Api-Key have two keys: one is allowed")
        presented = key.strip().encode("latin-1", "replace")  # as it came in the header
        digest = hashlib.sha256(presented[:MAX_KEY_BYTES]).digest()
        found: Caller | None = None
        for known, tenant in self._known:
            if hmac.compare_digest(known, digest):
                found = Caller(tenant, known)
        if found is None or scheme.lower() != "bearer" or len(presented) > MAX_KEY_BYTES:
            raise RequestError("invalid_api_key")
        if self._now() >= self._ends.get(found.key_digest, math.inf):
            raise RequestError("api_key_expired")
        return found
