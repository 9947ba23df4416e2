"""The audit log as a boot opens it, and what it says of the boot's own input.

Version 1 of the schema writes version 1 of the log. From schema 2 on it is version 3, which is
chained, or version 4 where the policy may need its records. On the state disk its key comes of the
disk's secret and lasts as long as the disk; elsewhere it is made anew at each boot. Attestation
binds its public half.
"""

from __future__ import annotations

import contextlib

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance.audit.chain import Chain
from appliance.audit.events import PLATFORMS_1, WRITTEN
from appliance.audit.log import FORMAT, AuditLog
from appliance.audit.sink import open_chained, open_sink
from appliance.boot.checks import Operator
from appliance.errors import AuditError
from appliance.policy.schema import Policy
from appliance.state.audit_sink import StateSink


def open_log(policy: Policy, operator: Operator) -> tuple[AuditLog, StateSink | None]:
    """The log, and its sink where that is the state disk, which a later stage opens. AuditError."""
    granted = operator.log_sink if "log_sink" in policy.service.operator_may_set else None
    version = version_for(policy)
    if policy.audit.sink == "state":
        waiting = StateSink()
        return AuditLog(waiting, version=version), waiting
    if version == FORMAT:
        return AuditLog(open_sink(granted)), None
    chain = Chain()
    sink, repaired = open_chained(granted, chain)
    log = AuditLog(sink, version=version)
    log.begin(chain, Ed25519PrivateKey.generate(), repaired=repaired)
    return log, None


def version_for(policy: Policy) -> int:
    """The lowest version that has all records that a policy may need."""
    if policy.appliance.schema_version == 1:
        return FORMAT
    padding = policy.privacy.timing_padding
    late = padding is not None and padding.cadence_ms > 0
    later = late or policy.audit.outcomes == "hidden" or not set(PLATFORMS_1).issuperset(policy.tee.platforms)
    return WRITTEN[-1] if later else WRITTEN[0]


def write_configuration(audit: AuditLog, policy: Policy, operator: Operator, tenants: int, *, list_version: int | None,
                        approvers: tuple[str, ...]) -> None:
    """Record what is in force beside the policy: the operator's choices, tenants, approvals.
    Version 1 has no such records."""
    if audit.version == 1:
        return
    chosen = {"listen_address": operator.listen_address, "listen_port": operator.listen_port,
              "log_sink": operator.log_sink}
    for option, value in chosen.items():
        if value is not None and option in policy.service.operator_may_set:
            audit.write("operator.set", option=option)
    audit.write("tenants.loaded", tenants=tenants, list_version=list_version)
    for name in approvers:
        audit.write("policy.approved", approver=name)


def write_sessions(audit: AuditLog, models: int) -> None:
    """Record for how many models sessions are kept. Version 1 lacks this record and the next."""
    if audit.version > 1:
        audit.write("sessions.opened", models=models)


def write_failed_sessions(audit: AuditLog, models: int) -> None:
    """Record that sessions are kept no more. The service finds out itself where the log fails."""
    if audit.version > 1:
        with contextlib.suppress(AuditError):
            audit.write("sessions.failed", models=models)


def write_keys(audit: AuditLog, policy: Policy) -> None:
    """Record the keys that were released, by their use. Version 1 has no such records."""
    if audit.version == 1:
        return
    for model in policy.models:
        if model.key is not None:
            audit.write("key.released", use="model", model=model.name, provider=model.key.provider)
    if policy.state is not None:
        audit.write("key.released", use="state", provider=policy.state.key.provider)
