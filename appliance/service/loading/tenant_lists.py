"""A newer list of tenants, taken while the service runs.

    judge     as at boot, and it must be newer than the list in force; in a thread, one list at a time
    keep      its version goes onto the state disk, if there is one: no boot accepts an older list from then on
    replace   at one moment of the event loop: a new generation is attested, requests find the new tenants, and answers
              of a key that was revoked end with an error
    record    in the audit log, with who asked
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator

from appliance.api import marks
from appliance.api.problems import RequestError
from appliance.boot.booted import Booted
from appliance.errors import AuditError, PolicyError, StateError
from appliance.policy import Policy
from appliance.policy.schema import Limits
from appliance.service.admission import quotas
from appliance.service.admission.tenants import Caller
from appliance.service.loading.wire import TenantListInForce
from appliance.service.parts.exchange import Exchange
from appliance.service.parts.wiring import Wiring
from appliance.signed import tenants
from appliance.signed.tenants import TenantList

_LEAST_BYTES = 1 << 20  # that a list may have, however short requests must be
_MARKS = 36  # of a tenant without models and keys: version 3 has 15 members


def most_bytes(limits: Limits) -> int:
    """The longest list that is read: the memory for reading a request is planned for so much."""
    return min(tenants.MAX_BYTES, max(limits.request_size_bytes, _LEAST_BYTES))


def most_marks(policy: Policy, nbytes: int) -> int:
    """The most marks (see `api.marks`) that a valid list of `nbytes` bytes can have: its tenants'
    members and models, and keys of 64 digits. Reading more would only hold the interpreter."""
    return tenants.MAX_TENANTS * (_MARKS + 2 * len(policy.models)) + nbytes // 32


class TenantLists:
    """Takes newer lists for one service. It belongs to the event loop."""

    def __init__(self, service: Wiring, renew: Callable[[], Awaitable[None]]) -> None:
        """`renew` gives listeners whose certificates have evidence new keys."""
        self._service, self._renew, self._one = service, renew, asyncio.Lock()
        self._read: set[bytes] = set()  # keys whose lists are in memory

    @property
    def _booted(self) -> Booted:
        return self._service.booted

    @contextlib.contextmanager
    def reading(self, caller: Caller) -> Iterator[None]:
        """Bound the memory of lists: one for each key, so that no key keeps another one's list out.
        RequestError for a second one."""
        if caller.key_digest in self._read:
            raise RequestError("too_many_requests", "another list of this API key is on its way")
        self._read.add(caller.key_digest)
        try:
            yield
        finally:
            self._read.discard(caller.key_digest)

    async def take(self, data: bytes, exchange: Exchange) -> TenantListInForce:
        """Put a list in force. RequestError where it is not accepted, and nothing has changed then;
        or where it cannot be recorded, and nothing more is served."""
        async with self._one:
            caller = self._service.roster.current(exchange.known)
            caller.require("change")  # as a list that came first may have it
            found = await self._judge(data)
            try:
                await asyncio.to_thread(self._keep, found)
                revoked = self._replace(found)
                self._record(found, revoked, exchange)
            except (AuditError, StateError) as error:
                self._service.readiness.lose_audit(error)
                raise RequestError("audit_unavailable") from None
            await self._renew()
            return TenantListInForce(version=found.version or 0, tenants=len(found.tenants), revoked_keys=revoked,
                                     generation=self._booted.attestor.state.generation)

    async def _judge(self, data: bytes) -> TenantList:
        most = most_marks(self._booted.policy, len(data))
        if await asyncio.to_thread(marks.count, data, most) > most:
            raise RequestError("tenant_list_refused", f"the body has too many values: a list of {len(data)} bytes may "
                               f"have {most} strings, brackets and commas between strings")
        try:
            return await asyncio.to_thread(self._newer, data)
        except PolicyError as error:
            older = error.code == "tenants-version"
            words = error.summary if error.hint is None else f"{error.summary}; {error.hint}"
            raise RequestError("tenant_list_older" if older else "tenant_list_refused", words) from None

    def _newer(self, data: bytes) -> TenantList:
        found, state = tenants.newer(data, self._booted.policy, self._booted.tenants), self._booted.state
        if state is not None:
            quotas.require_room(self._service.accounts.rates, found.tenants, state.most_quotas)
        return found

    def _keep(self, found: TenantList) -> None:
        if self._booted.state is not None and found.version is not None:
            self._booted.state.snapshot.advance_list(found.version)

    def _replace(self, found: TenantList) -> int:
        """Have the tenants of a list from now on; how many keys are valid no more."""
        service, booted, before = self._service, self._booted, self._service.roster.keys
        booted.audit.admit_tenants(tenant.name for tenant in found.tenants)
        booted.tenants = found
        service.roster.replace(found.tenants, found.ends)
        service.accounts.serve(found.tenants)
        self._share()
        booted.attestor.new_generation(model.running.bound() for model in service.models.loaded.values())
        service.roster.review()
        return len(before - service.roster.keys)

    def _share(self) -> None:
        """Divide places, slots and kept texts among the tenants as they are now."""
        service, roster = self._service, self._service.roster
        service.traffic.serve()
        service.constraints.serve(roster.askers)
        for model in service.models:
            model.scheduler.serve(roster.askers_of(model.name), roster.weights)
        service.books.metrics.watch_tenants(roster.askers)

    def _record(self, found: TenantList, revoked: int, exchange: Exchange) -> None:
        """Write it down; version 1 of the log knows of the generation alone."""
        generation, audit = self._booted.attestor.state.generation, self._booted.audit
        if audit.version == 1:
            audit.write("generation.new", generation=generation, models=len(self._service.models.loaded))
        else:
            audit.write("tenants.replaced", tenants=len(found.tenants), list_version=found.version, revoked=revoked,
                        generation=generation, tenant=exchange.known.name, request=exchange.request_id)
