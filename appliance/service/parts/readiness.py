"""Whether requests are accepted: the audit log takes their records, its disk has room for them, and
the service does not end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from appliance.api.problems import RequestError
from appliance.audit.endpoints import ALWAYS
from appliance.audit.log import AuditLog
from appliance.audit.sink import AUDIT_FULL
from appliance.boot.running.load import RunningModel
from appliance.errors import ApplianceError, AuditError, TamperedError
from appliance.service.attesting.checkpoints import Flushing
from appliance.state.disk import StateDisk
from appliance.state.room import AMPLE, FULL, LogRoom


class Tell(Protocol):
    """Tells whoever runs the service of an event; facts are numbers, and names from closed sets."""

    def __call__(self, event: str, **facts: Any) -> None:
        """Say it."""
        ...


class Readiness:
    """The state of one service. It belongs to the event loop."""

    def __init__(self, audit: AuditLog, disk: StateDisk | None) -> None:
        """`disk` that has the audit log; None where the log is elsewhere."""
        self._audit, self._disk = audit, disk
        self.draining = False
        self.unaudited = False  # the audit log failed: nothing more is served
        self.tell: Tell = lambda event, **facts: None  # the operator, on the console
        self._said_room = AMPLE  # the state of its room that the operator heard of last
        self._failed: set[str] = set()  # models whose end is recorded
        self._flushing = Flushing(audit)

    def __bool__(self) -> bool:
        """Whether inference requests are accepted."""
        return not (self.draining or self.unaudited or self.full)

    @property
    def status(self) -> str:
        """Whether requests are accepted, or why they are not: a word of `/health`."""
        if self:
            return "ready"
        return "draining" if self.draining else "unaudited" if self.unaudited else FULL

    @property
    def room(self) -> LogRoom | None:
        """The audit log's room on the state disk; None where the log is elsewhere."""
        return None if self._disk is None else self._disk.room

    @property
    def full(self) -> bool:
        """Whether the audit log has no room for further requests."""
        return (room := self.room) is not None and room.state == FULL

    def ample(self) -> bool:
        """Whether the audit log has more room than what is kept for tenants; tells the operator
        where that changed."""
        self._tell_room()
        return (room := self.room) is None or room.state == AMPLE

    def lose_audit(self, error: ApplianceError) -> None:
        """Serve nothing more: what happens can no longer be recorded, or quotas no longer be kept.
        A log that is full is not lost: it says itself for what it has room."""
        if error.code == AUDIT_FULL:
            self._tell_room()
        elif not self.unaudited:
            self.unaudited = True
            self.tell("unaudited", reason=error.summary)

    def _tell_room(self) -> None:
        """Tell the operator, once for each, that the audit log's disk is nearly full, and full."""
        if (room := self.room) is not None and room.state != self._said_room:
            self._said_room = room.state
            if room.state != AMPLE:
                self.tell(f"state_{room.state}", free_bytes=room.free)

    def require_going_on(self) -> None:
        """Refuse a request for text once the service ends."""
        if self.draining:
            raise RequestError("shutting_down", retry_after=5)

    def require_audit(self, endpoint: str = "") -> None:
        """Refuse everything once requests can no longer be recorded, but for endpoints that tell
        the operator so."""
        if self.unaudited and endpoint not in ALWAYS:
            raise RequestError("audit_unavailable")

    def require_room(self, endpoint: str) -> None:
        """Refuse a caller's request that the state disk has no room to record. Requests that were
        let in have some left for their ends."""
        if self.full and endpoint not in ALWAYS:
            self._tell_room()
            raise RequestError("state_full")

    async def flush(self, endpoint: str) -> None:
        """Wait until each record that is written by now is on the disk. RequestError where it
        cannot be."""
        try:
            await self._flushing.flush()
        except AuditError as error:
            self.lose_audit(error)
            self.require_audit(endpoint)

    def record_failures(self, models: Mapping[str, RunningModel]) -> None:
        """Record each model that a disk ended since the last time. Of a draft model no answer
        tells."""
        try:
            for name, model in models.items():
                if model.failure is not None and name not in self._failed:
                    self._failed.add(name)
                    code = "model_tampered" if model.failure == TamperedError.code else "model_unreadable"
                    self.tell("model_failed", model=name, code=code)
                    self._audit.write("model.failed", model=name, code=code)
        except AuditError as error:
            self.lose_audit(error)

    def forget_failure(self, model: str) -> None:
        """Record the next failure of a model that is loaded anew."""
        self._failed.discard(model)
