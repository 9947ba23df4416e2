"""A running appliance's word of itself, asked on a verified connection: health, metrics, and the
head of its log."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from appliance.client import Channel, Verdict, Verifier, target
from appliance.client.exchange import Refusal, send
from appliance.client.verdict import Status
from appliance.codec import strict
from appliance.errors import ApplianceError

MOST_BYTES = 4 << 20  # of an answer
SECONDS = 30.0        # for one
Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Reading:
    """One look at an appliance. `samples`: by name, each with its labels in order."""

    verdict: Verdict
    health: dict[str, Any]
    samples: dict[str, dict[Labels, float]]
    checkpoint: str = ""
    at: float = field(default_factory=time.monotonic)
    time: float = field(default_factory=time.time)

    def values(self, name: str, **labels: str) -> dict[Labels, float]:
        """The samples of a metric that have these labels."""
        return {key: value for key, value in self.samples.get(name, {}).items() if labels.items() <= dict(key).items()}

    def sum(self, name: str, **labels: str) -> float:
        """Their sum."""
        return sum(self.values(name, **labels).values())

    def labels(self, name: str, label: str) -> list[str]:
        """The values that a label has in a metric, in order."""
        return sorted({dict(key)[label] for key in self.samples.get(name, {})})


class Asker:
    """Reads one appliance. `tell` of the channel keeps the last verdict."""

    def __init__(self, verifier: Verifier, url: str, key: str, accept: tuple[Status, ...] = ()) -> None:
        self.policy = verifier.reference.policy.policy
        self.verdicts: list[Verdict] = []
        self.channel = Channel(verifier, target.endpoint(url), tell=self._keep, accept=accept)
        self._headers = [("Authorization", f"Bearer {key}")]

    def _keep(self, verdict: Verdict) -> None:
        self.verdicts[:] = [verdict]

    def verify(self) -> Verdict:
        """Verify now. Raises as `Channel.take` does."""
        return self.channel.verify()

    def read(self, *, log: bool = False) -> Reading:
        """Ask for all. `log`: for the head of the log as well. ApplianceError where no answer
        of an appliance comes."""
        health = self._parsed("/health", strict.json_value, (200, 503))
        samples = self._parsed("/metrics", _samples)
        checkpoint = self._ask("/v1/audit/checkpoint", (200, 404)) if log else ""
        if not isinstance(health, dict) or not self.verdicts:
            raise ApplianceError(f"{self.channel.endpoint}: the answer is not that of an appliance", code="no-answer")
        return Reading(self.verdicts[0], health, samples, checkpoint)

    def _parsed(self, path: str, parse: Callable[[str], Any], good: tuple[int, ...] = (200,)) -> Any:
        try:
            return parse(self._ask(path, good))
        except ValueError:
            raise ApplianceError(f"{self.channel.endpoint}: {path}: the answer is not that of an appliance",
                                 code="no-answer") from None

    def _ask(self, path: str, good: tuple[int, ...] = (200,)) -> str:
        try:
            answer = send(self.channel, "GET", path, self._headers, b"", seconds=SECONDS)
            try:
                data = b""
                while len(data) <= MOST_BYTES and (piece := answer.read()):
                    data += piece
            finally:
                answer.close()
        except Refusal as refusal:
            raise ApplianceError(refusal.message, code=refusal.code) from None
        if answer.status not in good:
            hint = "the key needs the role auditor or admin" if answer.status in (401, 403) else None
            raise ApplianceError(f"{self.channel.endpoint}: {path} has status {answer.status}", code="refused",
                                 hint=hint)
        return data.decode("utf-8", "replace") if answer.status != 404 else ""


def _samples(text: str) -> dict[str, dict[Labels, float]]:
    found: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(text):
        for each in family.samples:
            found.setdefault(each.name, {})[tuple(sorted(each.labels.items()))] = each.value
    return found
