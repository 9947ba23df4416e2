"""Facts for alerts, read anew at each scrape: what runs since when, what its memory is for, what
expires, and how old the audit log's last signed words are.

All of it is in the policy or seen by the host, but for quotas, which come in tenths. Times are
by the host's clock. An event that has not come in this boot has no line.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from appliance import __version__, hostclock
from appliance.boot.booted import Booted
from appliance.http.tls import RaTls
from appliance.service.admission.limits import Accounts
from appliance.service.admission.tenants import Roster

TENTHS = 10  # steps of a quota's use
Lines = Iterable[tuple[tuple[str, ...], float]]  # values of the labels, value


@dataclass(eq=False)  # the registry keeps it by its identity
class Facts(Collector):
    """The facts of one service. It belongs to the event loop."""

    booted: Booted
    roster: Roster
    accounts: Accounts
    identities: dict[str, RaTls] = field(default_factory=dict)  # of attested listeners, by name
    started: float = field(default_factory=hostclock.seconds)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield each metric with the lines that it has now."""
        for name, words, labels, lines in self._rows():
            family = GaugeMetricFamily(name, words, labels=labels)
            for values, value in lines:
                family.add_metric(values, value)
            yield family

    def _rows(self) -> Iterator[tuple[str, str, tuple[str, ...], Lines]]:
        booted, chain = self.booted, self.booted.audit.chain
        about = __version__, booted.policy_digest.hex(), booted.attestor.platform
        yield ("appliance_info", "Always 1: the version, the policy's digest and the platform.",
               ("version", "policy_sha384", "platform"), [(about, 1)])
        yield "process_start_time_seconds", "When the service started.", (), [((), self.started)]
        yield ("appliance_generation", "The generation of evidence: of models and TLS keys.", (),
               [((), booted.attestor.state.generation)])
        yield ("appliance_model_failed", "1 for a model that its disk ended.", ("model",),
               [((name,), int(model.failure is not None)) for name, model in tuple(booted.models.items())])
        yield ("appliance_memory_planned_bytes", "The parts of memory that the boot planned.", ("model", "part"),
               self._memory())
        yield ("appliance_certificate_end_timestamp_seconds", "When an attested listener's certificate ends.",
               ("listener",), [((name,), each.certificate.not_valid_after_utc.timestamp())
                               for name, each in self.identities.items() if each.certificate is not None])
        yield ("appliance_audit_last_timestamp_seconds", "When the log took its last signed word of a kind in this "
               "boot.", ("kind", "witness"), () if chain is None else tuple(chain.dated.items()))
        yield ("appliance_quota_used_ratio", "The use of a tenant's limits, or of its key's that is the fullest, in "
               "tenths, rounded up.", ("tenant", "window"), self._quotas().items())
        yield ("appliance_api_key_end_timestamp_seconds", "When the first of a tenant's keys ends that are valid.",
               ("tenant",), [((name,), end) for name, end in self.roster.next_ends.items()])

    def _memory(self) -> Lines:
        """The plan's lines, without the numbers in their words."""
        sums = Counter[tuple[str, str]]()
        for line in self.booted.division.lines:
            model, _, part = line.what.rpartition(": ")
            sums[model, part.partition(",")[0].partition(" (")[0]] += line.nbytes
        return sums.items()

    def _quotas(self) -> dict[tuple[str, ...], float]:
        """How far the windows that have a limit are used, by tenant and window."""
        found, names = dict[tuple[str, ...], float](), self.roster.names
        accounts = [*((names.get(key), account) for key, account in self.accounts), *self.accounts.tenants.items()]
        for name, account in accounts:
            for window, each in account.windows().items():
                if name is not None and each.limit is not None:
                    used = math.ceil((each.limit - each.remaining) * TENTHS / each.limit) / TENTHS
                    found[name, window] = max(used, found.get((name, window), 0.0))
        return found
