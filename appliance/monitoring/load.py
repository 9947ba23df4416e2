"""The load between two readings: rates, quantiles of histograms, ages, and words for them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from appliance.monitoring.asking import Reading

SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
SPANS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


@dataclass(frozen=True)
class Load:
    """The counts from one reading to a later one; without an earlier one, all since the boot."""

    now: Reading
    before: Reading | None = None

    @property
    def seconds(self) -> float:
        """The time between them."""
        if self.before is None:
            return max(self.now.time - self.now.sum("process_start_time_seconds"), 1.0)
        return max(self.now.at - self.before.at, 0.001)

    def count(self, name: str, **labels: str) -> float:
        """How much a counter grew. A smaller counter began anew."""
        now, before = self.now.sum(name, **labels), 0.0 if self.before is None else self.before.sum(name, **labels)
        return now if now < before else now - before

    def rate(self, name: str, **labels: str) -> float:
        """How much it grew in a second."""
        return self.count(name, **labels) / self.seconds

    def quantile(self, name: str, part: float, **labels: str) -> float:
        """The bound of the bucket in which a part of what was observed ends; NaN of nothing."""
        bounds = sorted({float(each) for each in self.now.labels(f"{name}_bucket", "le")})
        counts = [self.count(f"{name}_bucket", le=_bound(each), **labels) for each in bounds]
        if not counts or counts[-1] <= 0:
            return math.nan
        return next(bound for bound, count in zip(bounds, counts, strict=True) if count >= part * counts[-1])

    def age(self, kind: str) -> dict[str, float]:
        """Seconds since the log's last signed word of a kind, by witness."""
        found = self.now.values("appliance_audit_last_timestamp_seconds", kind=kind)
        return {dict(labels)["witness"]: self.now.time - value for labels, value in found.items()}


def _bound(value: float) -> str:
    """A bucket's bound, as Prometheus' Python library writes it."""
    return "+Inf" if math.isinf(value) else repr(value)


def span(seconds: float) -> str:
    """A time in its largest unit, such as 3 h."""
    size, unit = next(((size, unit) for size, unit in SPANS if seconds >= size), SPANS[-1])
    return f"{max(seconds, 0) / size:.0f} {unit}"


def nbytes(number: float) -> str:
    """A size, such as 1.5 MiB."""
    size, unit = next(((size, unit) for size, unit in SIZES if number >= size), (1, "bytes"))
    return f"{number / size:.1f} {unit}" if size > 1 else f"{number:.0f} bytes"


def bound(seconds: float) -> str:
    """A quantile, such as ≤ 250 ms."""
    if math.isnan(seconds):
        return "-"
    if math.isinf(seconds):
        return "more"
    return f"≤ {seconds * 1000:.0f} ms" if seconds < 1 else f"≤ {seconds:g} s"
