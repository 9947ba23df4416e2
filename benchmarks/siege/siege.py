"""One case after the other: what is felt beside hostile clients, and beside ordinary ones."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import numpy as np

from benchmarks.process import Engine
from benchmarks.siege.cases import Row
from benchmarks.siege.clients import Client, Field

HEALTH_P99, HEALTH_MOST, RATIO = 100.0, 500.0, 2.0  # milliseconds, and times
SETTLE = 1.0  # seconds from the first requests of clients to the first look, and from their last to others' first
SHARE = 0.6  # of a case's seconds, for its ordinary load


def spread(values: list[float]) -> list[float]:
    """The median, the 90th and the 99th percentile, and the most; infinite where there is none."""
    if not values:
        return [float("inf")] * 4
    return [*(float(np.percentile(values, share, method="higher")) for share in (50, 90, 99)), max(values)]


class Siege:
    """An appliance that listens, and the process that watches."""

    def __init__(self, port: int, watch: Engine, seconds: float) -> None:
        self.field = Field(port)
        self._watch, self._seconds = watch, seconds

    async def case(self, row: Row) -> dict[str, Any]:
        """The figures of a row, and the promises that were not kept."""
        usual = None
        if row.ordinary is not None:
            usual = await self._beside(row.ordinary, row.ordinary_clients or row.clients, SHARE)
        found = await self._beside(row.hostile, row.clients, 1.0)
        found["usual"] = usual
        found["usual_ms"] = found["clients_first_ms"] if usual is None else usual["first_ms"]
        found["missed"] = missed(found)
        return found

    async def _beside(self, client: Client, count: int, share: float) -> dict[str, Any]:
        field = self.field
        field.statuses, field.firsts = Counter(), []
        running = [asyncio.create_task(client(field, number)) for number in range(count)]
        await asyncio.sleep(SETTLE)
        felt = await asyncio.to_thread(self._watch.ask, "watch", port=field.port, seconds=share * self._seconds)
        for each in running:
            each.cancel()
        ended = await asyncio.gather(*running, return_exceptions=True)
        await asyncio.sleep(SETTLE)
        field.heads += [(request, endpoint, status) for request, endpoint, status in felt["heads"]]
        broken = [repr(each) for each in ended if not isinstance(each, asyncio.CancelledError)]
        return {"health_ms": spread(felt["health"]), "first_ms": spread(felt["firsts"]), "looks": len(felt["health"]),
                "firsts": len(felt["firsts"]), "failed": felt["failed"][:5] + broken[:2],
                "statuses": dict(field.statuses), "clients_first_ms": spread(field.firsts)}


def missed(found: dict[str, Any]) -> list[str]:
    """The promises of a case that were not kept."""
    health, first, usual = found["health_ms"], found["first_ms"], found["usual_ms"]
    kept = {"health": health[2] <= HEALTH_P99 and health[3] <= HEALTH_MOST, "served": not found["failed"],
            "first": all(ours <= RATIO * theirs for ours, theirs in zip(first[:2], usual[:2], strict=True))}
    return [name for name, is_kept in kept.items() if not is_kept]


def line(name: str, found: dict[str, Any]) -> str:
    """A case's line of the table, below `HEADING`."""
    p50, _, p99, most = found["health_ms"]
    figures = [p50, p99, most, *found["first_ms"][:2], *found["usual_ms"][:2]]
    told = ", ".join(f"{count} {status}" for status, count in Counter(found["statuses"]).most_common(3))
    verdict = f"MISSED {', '.join(found['missed'])}" if found["missed"] else "kept"
    return f"{name:33}" + "".join(f"{each:9.1f}" for each in figures) + f"  {verdict}; {told}"


HEADING = f"{'milliseconds':33}" + "".join(f"{each:>9}" for each in (
    "health50", "p99", "most", "first50", "p90", "usual50", "p90"))
