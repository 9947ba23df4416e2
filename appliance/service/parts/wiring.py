"""The wiring: a booted appliance and its policy become the parts of a running service, once. The
wiring never changes; its parts do."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from appliance.api.adapters import parameters
from appliance.api.problems import PROBLEMS
from appliance.audit.digests import Salts
from appliance.audit.log import AuditLog
from appliance.boot.booted import Booted
from appliance.boot.running.interval import interval_of
from appliance.detectors.looks import Looks
from appliance.detectors.stream import Detection
from appliance.kernels.runtime import table
from appliance.oblivious.contents import BodyReader
from appliance.policy.schema import Policy
from appliance.secure.residue import Scrubber
from appliance.service.admission import quotas
from appliance.service.admission.constraints import Constraints
from appliance.service.admission.limits import Accounts, Rates
from appliance.service.admission.privacy import Timing
from appliance.service.admission.prompts import Prompts
from appliance.service.admission.redaction import Rule, Substitution, rules_of
from appliance.service.admission.tenants import Roster
from appliance.service.attesting.activation import Activations
from appliance.service.attesting.evidences import Evidences
from appliance.service.attesting.held_log import HeldLog
from appliance.service.attesting.receipts import Receipts
from appliance.service.attesting.timestamps import Timestamps
from appliance.service.attesting.witnesses import Witnesses
from appliance.service.counting.records import OwnRecords
from appliance.service.counting.usage import Ledger
from appliance.service.parts.facts import Facts
from appliance.service.parts.metrics import Metrics
from appliance.service.parts.models import Models
from appliance.service.parts.readiness import Readiness
from appliance.service.parts.traffic import Traffic


@dataclass(frozen=True)
class Attesting:
    """The parts that answer with evidence."""

    evidences: Evidences
    activations: Activations
    witnesses: Witnesses
    timestamps: Timestamps
    held_log: HeldLog
    receipts: Receipts | None  # None: the policy gives none


@dataclass
class Books:
    """The counts of one service."""

    metrics: Metrics = field(default_factory=Metrics)
    ledger: Ledger = field(default_factory=Ledger)
    own_records: OwnRecords = field(default_factory=OwnRecords)
    answered: int = 0
    refusals: Counter[str] = field(default_factory=Counter)  # by code

    async def hold(self, interval_ms: int) -> None:
        """Hold metrics and usage as they are at each multiple of an interval from now on; 0: never.
        """
        begun, interval = time.monotonic(), interval_ms / 1000
        while interval:
            self.metrics.hold()
            self.ledger.hold()
            await asyncio.sleep(interval - (time.monotonic() - begun) % interval)


@dataclass(frozen=True)
class Wiring:
    """One running service."""

    booted: Booted
    models: Models
    roster: Roster
    accounts: Accounts
    traffic: Traffic
    timing: Timing
    substitutions: tuple[Rule, ...]
    constraints: Constraints
    scrubber: Scrubber
    salts: Salts | None  # of digests in the log; None: its version has none
    attesting: Attesting
    readiness: Readiness
    facts: Facts
    bodies: BodyReader | None = None  # None: Python reads the texts of a request
    looks: Looks | None = None  # at texts that nothing in Python reads; None without redaction of such
    books: Books = field(default_factory=Books)
    prompts: Prompts = field(default_factory=Prompts)

    @property
    def policy(self) -> Policy:
        """The deployment policy."""
        return self.booted.policy

    @property
    def audit(self) -> AuditLog:
        """The audit log."""
        return self.booted.audit

    @property
    def rounding(self) -> int:
        """Reported token counts are multiples of this."""
        return self.policy.privacy.token_count_rounding

    @property
    def padding(self) -> int | None:
        """Events and answers have multiples of so many bytes; None: any size."""
        return self.policy.privacy.size_padding_bytes

    @property
    def parcel(self) -> int | None:
        """Each parcel of a stream has so many bytes; None: streams do not leave in parcels."""
        return self.padding if self.timing.cadence else None

    def substitutions_in(self, place: str) -> tuple[Rule, ...]:
        """Return the redaction of the `prompt` or the `answer`."""
        return self.substitutions if place in self.policy.privacy.redaction.apply_to else ()

    def health(self) -> dict[str, Any]:
        """Return the answer of `/health`: state, platform, policy, models, and the boot's steps."""
        booted, state, disk = self.booted, self.booted.attestor.state, self.booted.state
        return {
            "status": self.readiness.status,
            "platform": booted.attestor.platform,
            "policy_sha384": booted.policy_digest.hex(),
            "memory_access": self.policy.privacy.memory_access,
            "self_test_sha384": booted.self_test.digest.hex(),
            "generation": state.generation,
            "models": [{"name": model.name, "sha256": model.sha256, "failure": booted.models[model.name].failure}
                       for model in state.models],
            "hardening": [measure.as_json() for measure in booted.measures],
            "state": None if disk is None else {"epoch": disk.epoch, "disk": disk.disk.hex(), "free_bytes": disk.free,
                                                "room": disk.room.state},
            "sessions": None if booted.sessions is None else booted.sessions.as_json(),
            "boot": booted.report.as_json(),
        }


def assemble(booted: Booted, closing: contextlib.ExitStack) -> Wiring:
    """Put together what handlers use, from the policy and what was booted by it. `closing` ends
    what was started, also where the rest fails."""
    policy, limits = booted.policy, booted.policy.limits
    booted.audit.admit_codes(PROBLEMS)
    booted.audit.words.parameters.admit(parameters.NAMES)
    attesting, timing, scrubber = _attesting(booted), _timing(policy), Scrubber()
    roster = Roster(booted.tenants.tenants, booted.tenants.ends, attesting.timestamps.latest)
    accounts = Accounts(Rates(limits.requests_per_minute, limits.tokens_per_minute, limits.tokens_per_day))
    accounts.serve(booted.tenants.tenants)
    if booted.state is not None:
        quotas.require_room(accounts.rates, booted.tenants.tenants, booted.state.most_quotas)
        quotas.restore(accounts, booted.state.snapshot.quotas, roster.keys)
    substitutions = rules_of(policy.privacy.redaction, booted.kernels)
    service = Wiring(
        booted=booted, models=Models(booted, roster), roster=roster, accounts=accounts,
        traffic=Traffic(limits, roster, timing), timing=timing,
        substitutions=substitutions,
        constraints=Constraints(roster.askers, scrubber.begin_soon), scrubber=scrubber,
        salts=Salts() if booted.audit.version > 1 else None, attesting=attesting,
        readiness=Readiness(booted.audit, booted.state if policy.audit.sink == "state" else None),
        facts=Facts(booted, roster, accounts), bodies=_bodies(booted), looks=_looks(booted, substitutions))
    if service.salts is not None:
        closing.callback(service.salts.wipe)
    closing.callback(service.models.close)
    metrics = service.books.metrics
    metrics.registry.register(service.facts)
    metrics.watch(service.traffic, service.constraints.waiting_of, service.readiness)
    metrics.watch_tenants(roster.askers)
    for name, running in booted.models.items():
        service.models.loaded[name] = service.models.serve(running)
        metrics.watch_model(service.models.loaded[name], service.traffic)
    return service


def _bodies(booted: Booted) -> BodyReader | None:
    """The reader of bodies under `memory_access = "oblivious"`."""
    if booted.policy.privacy.memory_access == "open":
        return None
    return BodyReader(table.load() if booted.kernels is None else booted.kernels)


def _looks(booted: Booted, rules: Sequence[Rule]) -> Looks | None:
    """The looks at texts, for what may be redacted under `memory_access = "oblivious"`."""
    if booted.policy.privacy.memory_access == "open" or not rules:
        return None
    detected = [row.expression for rule in rules if isinstance(rule, Detection) for row in rule.rows]
    patterns = [rule.expression for rule in rules if isinstance(rule, Substitution)]
    return Looks(detected, patterns, table.load() if booted.kernels is None else booted.kernels)


def _attesting(booted: Booted) -> Attesting:
    audit = booted.policy.audit
    timestamps = Timestamps(booted.audit, audit.timestamp_authority)
    return Attesting(Evidences(booted.attestor), Activations(booted.attestor),
                     Witnesses(booted.audit, audit.witnesses, timestamps), timestamps,
                     HeldLog(booted.state if audit.sink == "state" else None),
                     Receipts(booted) if audit.receipts else None)


def _timing(policy: Policy) -> Timing:
    padding = policy.privacy.timing_padding
    if padding is None:
        return Timing()
    interval = interval_of(policy)
    return Timing(padding.first_token_ms / 1000, padding.total_ms / 1000, padding.jitter_ms / 1000,
                  0.0 if interval is None else interval.seconds)
