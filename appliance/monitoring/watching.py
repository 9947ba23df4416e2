"""Verdicts on a schedule, as metrics: what a client would see now, and since when it would not."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from appliance.client import Verifier
from appliance.client.fleet.overlap import Overlap
from appliance.client.verdict import UNCHECKED, Status, unmade
from appliance.errors import ApplianceError

LABELS = ("target",)


@dataclass
class Sight:
    """The last look at one appliance. `said`: its verdict as `appliance verify --json` has it."""

    target: str
    said: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    good: bool = False
    checked: float = 0.0  # seconds since 1970
    seconds: float = 0.0  # that it took
    last_good: float | None = None

    @property
    def word(self) -> tuple[str, str]:
        """The verdict, and the code of what failed."""
        return str(self.said.get("verdict", UNCHECKED)), str(self.said.get("code") or "")


class Watch(Collector):
    """Looks at appliances, again and again. Files of the reference are read anew for each round: a
    policy or collateral that was replaced counts from then on."""

    def __init__(self, targets: Sequence[str], verifier: Callable[[], Verifier | Overlap],
                 accept: Sequence[Status] = ()) -> None:
        self.sights = [Sight(each) for each in targets]
        self._verifier, self._accept = verifier, accept
        self._ends: float | None = None  # when the first of the collateral at hand does
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)

    def look(self) -> Iterator[tuple[Sight, bool]]:
        """Verify each appliance now; yields each with whether its verdict changed."""
        try:
            judge: Verifier | Overlap | ApplianceError = self._verifier()
        except ApplianceError as error:
            judge = error
        self._ends = _first_end(judge)
        for sight in self.sights:
            before = sight.word if sight.checked else None
            self._check(sight, judge)
            yield sight, before != sight.word

    def _check(self, sight: Sight, judge: Verifier | Overlap | ApplianceError) -> None:
        sight.checked, begun = time.time(), time.monotonic()
        try:
            if isinstance(judge, ApplianceError):
                raise judge
            verdict = judge.verify(sight.target)
            sight.said, sight.text = verdict.as_json(), str(verdict)
            sight.good = verdict.verified or verdict.status in self._accept
        except ApplianceError as error:
            sight.said, sight.text, sight.good = unmade(error, sight.target), f"{sight.target}: {error}", False
        sight.seconds = time.monotonic() - begun
        if sight.good:
            sight.last_good = sight.checked

    @property
    def exit_code(self) -> int:
        """0 where each verdict will do, else that of the first which does not."""
        return next((int(each.said["exit_code"]) for each in self.sights if not each.good), 0)

    def text(self) -> bytes:
        """The metrics, in Prometheus' text format."""
        return generate_latest(self.registry)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metrics of all appliances that were looked at."""
        seen = [each for each in self.sights if each.checked]
        yield _family("verdict", "Always 1: the verdict now, and the code of what failed.", [
            ((each.target, *each.word), 1) for each in seen], (*LABELS, "verdict", "code"))
        yield _family("verified", "1 while the verdict will do.", [
            ((each.target,), float(each.good)) for each in seen])
        yield _family("checked_timestamp_seconds", "When an appliance was looked at last.", [
            ((each.target,), each.checked) for each in seen])
        yield _family("verified_timestamp_seconds", "When its verdict did last.", [
            ((each.target,), each.last_good) for each in seen if each.last_good is not None])
        yield _family("duration_seconds", "How long the last look took.", [
            ((each.target,), each.seconds) for each in seen])
        yield _family("policy_info", "Always 1: the digest of the policy that is expected.", [
            ((each.target, each.said["policy_sha384"]), 1) for each in seen if each.said.get("policy_sha384")],
            (*LABELS, "policy_sha384"))
        yield _family("collateral_end_timestamp_seconds", "When the first of the collateral at hand expires.",
                      [] if self._ends is None else [((), self._ends)], ())


Lines = Sequence[tuple[tuple[str, ...], float]]


def _family(name: str, words: str, lines: Lines, labels: Sequence[str] = LABELS) -> GaugeMetricFamily:
    found = GaugeMetricFamily(f"appliance_watch_{name}", words, labels=labels)
    for values, value in lines:
        found.add_metric(values, value)
    return found


def _first_end(judge: Verifier | Overlap | ApplianceError) -> float | None:
    """When the first revocation list or TCB document at hand says that its next one is due."""
    if isinstance(judge, ApplianceError):
        return None
    collateral = judge.reference.collateral
    ends = [each.next_update_utc.timestamp() for each in collateral.crls if each.next_update_utc is not None]
    for document in collateral.documents:
        for part in document.values():
            if isinstance(part, dict) and isinstance(told := part.get("nextUpdate"), str):
                with contextlib.suppress(ValueError):
                    ends.append(_utc(told).timestamp())
    return min(ends, default=None)


def _utc(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
