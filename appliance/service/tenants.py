"""Who asks: an API key to a tenant, in constant time over all keys.

A key is never stored: the policy holds its SHA-256, and the presented key's SHA-256 is compared with every one of
them without leaving early, so that neither the time nor the order tells how close a guess came. Keys are random
(`appliance key new`: 32 bytes from the secure source), so a plain hash is enough: there is no weak key to guess.

A policy without tenants serves one caller, `anonymous`, who may use every model.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field

from appliance.service.problems import RequestError

MAX_KEY_BYTES = 512


@dataclass(frozen=True)
class Tenant:
    """A name from the policy, its role there, and what it may use."""

    name: str
    role: str
    models: frozenset[str]
    key_digests: tuple[bytes, ...] = field(repr=False)  # SHA-256, 32 bytes each


class Tenants:
    """All tenants of a policy; none means that the service asks for no key."""

    def __init__(self, tenants: Iterable[Tenant], *, models: frozenset[str]) -> None:
        self._tenants = tuple(tenants)
        self._anonymous = Tenant("anonymous", "user", models, ())

    @property
    def open(self) -> bool:
        """Whether the service asks for no key."""
        return not self._tenants

    def authenticate(self, authorization: str | None) -> Tenant:
        """The tenant whose key an `Authorization: Bearer KEY` header presents; RequestError if there is none."""
        if self.open:
            return self._anonymous
        scheme, _, key = (authorization or "").partition(" ")
        presented = key.strip().encode("utf-8", "surrogateescape")
        digest = hashlib.sha256(presented[:MAX_KEY_BYTES]).digest()
        found: Tenant | None = None
        for tenant in self._tenants:
            for known in tenant.key_digests:
                if hmac.compare_digest(known, digest):
                    found = tenant
        if found is None or scheme.lower() != "bearer" or len(presented) > MAX_KEY_BYTES:
            raise RequestError("invalid_api_key")
        return found
