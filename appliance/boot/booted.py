"""The result of a finished boot for the service: everything checked, loaded and bound."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

from appliance.attestation.collect.attestor import Attestor
from appliance.attestation.evidence import Evidence
from appliance.audit.log import AuditLog
from appliance.boot.checks import Operator
from appliance.boot.planning import budget
from appliance.boot.planning.budget import Division
from appliance.boot.report import BootReport
from appliance.boot.running.declared import ModelLoader
from appliance.boot.running.load import RunningModel
from appliance.boot.selftest.run import SelfTest
from appliance.boot.stdlib import Silence
from appliance.errors import BootError
from appliance.kernels.runtime.table import KernelTable
from appliance.policy.schema import Policy
from appliance.sandbox.box import Sandbox
from appliance.sandbox.measure import Measure
from appliance.signed.tenants import TenantList
from appliance.state.disk import StateDisk
from appliance.state.sessions import Sessions


@dataclass
class Booted:
    """The running appliance, below its service. Close it once, when the service has ended."""

    policy: Policy
    division: Division              # of the memory
    policy_digest: bytes            # 48 bytes, SHA-384 of the canonical policy
    operator: Operator
    tenants: TenantList
    models: dict[str, RunningModel]  # that are loaded, by the policy's name
    attestor: Attestor
    audit: AuditLog
    silence: Silence                # counts of silenced log records; handler for the event loop's exceptions
    self_test: SelfTest
    sandbox: Sandbox
    state: StateDisk | None
    report: BootReport
    sessions: Sessions | None = None
    declared: ModelLoader | None = None  # models that may be loaded later; None: of a test
    _end: Callable[[Exception | None], BootError | None] = field(default=lambda error: None, repr=False)
    listening: bool = False
    kernels: KernelTable | None = field(default=None, repr=False)  # None: those that this process can load

    def attest(self, nonce: bytes | str) -> Evidence:
        """Evidence for a client's nonce, raw or as text. Raises MalformedEvidenceError on a bad
        nonce."""
        return self.attestor.attest(nonce)

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Hardening and sandbox, so far."""
        return tuple(self.sandbox.measures)

    def ready(self) -> None:
        """To be called by the service once its listeners are open and its threads run: holds it to
        its memory, closes the sandbox and ends the last step of the boot. BootError where the
        sandbox cannot be closed, OSError or ValueError where the kernel refuses the limit."""
        budget.hold(self.policy, self.division)
        self.sandbox.tighten("serve")
        self.listening = True
        self._end(None)

    def refuse(self, error: Exception) -> BootError:
        """The diagnostic for a service that could not start; ends the last step of the boot as
        failed."""
        return self._end(error) or BootError(str(error))

    def close(self, *, abandoned: bool = False) -> None:
        """Drop the models, let go of the platform, close the audit log and the state disk.
        `abandoned`: without waiting for threads that use models; the process must end then."""
        with contextlib.ExitStack() as closing:  # all of it, whatever goes wrong with one; the last entered goes first
            if self.state is not None:
                closing.callback(self.state.close)
            if self.sessions is not None:
                closing.callback(self.sessions.close)
            closing.callback(self.audit.close)
            closing.callback(self.attestor.close)
            if self.declared is not None:
                closing.callback(self.declared.wipe)
            for model in self.models.values():  # who drafts for others was loaded before them
                closing.callback(model.wipe if abandoned else model.close)

    def wipe(self) -> None:
        """Wipe keys and what models hold, and write nothing: for a process in which other threads
        hang, as in a write to the audit log or the state disk. It must end then."""
        with contextlib.ExitStack() as closing:
            if self.state is not None:
                closing.callback(self.state.wipe)
            if self.sessions is not None:
                closing.callback(self.sessions.wipe)
            closing.callback(self.attestor.close)
            if self.declared is not None:
                closing.callback(self.declared.wipe)
            for model in self.models.values():
                closing.callback(model.wipe)
