"""A boot under way: what exists so far of it, and how that is closed when the boot does not come to
its end."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path

from appliance.attestation.binding import Build
from appliance.attestation.collect.attestor import Attestor
from appliance.attestation.collector import Interfaces
from appliance.attestation.evidence import Provider
from appliance.audit.log import AuditLog
from appliance.boot.checks import Operator
from appliance.boot.planning.budget import Division
from appliance.boot.running.declared import ModelLoader
from appliance.boot.running.load import RunningModel
from appliance.boot.selftest.run import SelfTest
from appliance.boot.stdlib import Silence
from appliance.boot.steps import Steps
from appliance.kernels.runtime.table import KernelTable
from appliance.keys import policy_keys
from appliance.keys.providers import Secret
from appliance.keys.release.release import KeyRelease
from appliance.models.catalogue import Catalogue
from appliance.policy import Loaded, Policy
from appliance.sandbox import box
from appliance.signed.tenants import TenantList
from appliance.state.audit_sink import StateSink
from appliance.state.disk import StateDisk
from appliance.state.sealed_key import SealedKey
from appliance.state.sessions import Sessions


@dataclass
class UnderWay:
    """The parts of a boot that exist so far. Fields without a default are filled by its steps, in
    this order."""

    loaded: Loaded
    operator: Operator
    folders: tuple[Path, ...]  # where models and papers are looked for
    places: Interfaces
    audit: AuditLog
    sink: StateSink | None
    silence: Silence
    steps: Steps
    fetcher: KeyRelease
    catalogue: Catalogue = field(init=False)
    tenants: TenantList = field(init=False)
    provider: Provider = field(init=False)
    table: KernelTable = field(init=False)
    box: box.Sandbox = field(init=False)
    formats: frozenset[str] | None = None  # block formats that the self-test covered; None is all
    tested: SelfTest = field(init=False)
    build: Build = field(init=False)
    keys: dict[str, Secret] = field(default_factory=dict)  # each is wiped when its model was read
    successor: dict[int, bytes] = field(default_factory=dict)  # registers of the image that follows, by number
    state_key: Secret | None = None
    sealed: SealedKey | None = None  # the state disk's places for its key, if that is in a TPM
    disk: StateDisk | None = None
    division: Division = field(init=False)
    running: dict[str, RunningModel] = field(default_factory=dict)
    declared: ModelLoader | None = None  # those that may be loaded later, once memory was divided
    sessions: Sessions | None = None
    attestor: Attestor = field(init=False)
    generation: int = field(init=False)

    @property
    def policy(self) -> Policy:
        """The policy that it boots by."""
        return self.loaded.policy

    @property
    def tolerant(self) -> bool:
        """Whether measures may be refused: on the simulated platform."""
        return self.policy.simulated

    @property
    def prebuilt(self) -> bool:
        """Whether its kernels come from a library, so that none is compiled here."""
        return self.table.origin == "ahead"

    def close(self) -> None:
        """Close and wipe what there is: all of it, whatever goes wrong with one."""
        with contextlib.ExitStack() as closing:  # the last entered goes first
            closing.callback(self.silence.restore)
            if self.disk is not None:
                closing.callback(self.disk.close)
            elif self.state_key is not None:
                closing.callback(self.state_key.wipe)
            if self.sessions is not None:
                closing.callback(self.sessions.close)
            closing.callback(self.audit.close)
            if "provider" in self.__dict__:
                closing.callback(self.provider.close)
            for model in self.running.values():  # who drafts for others was loaded before them
                closing.callback(model.close)
            if self.declared is not None:
                closing.callback(self.declared.wipe)
            closing.callback(policy_keys.wipe, self.keys)
            closing.callback(self.fetcher.close)
