"""The population of a log, for drawing samples: CSV (RFC 4180), one row a record, in order.

A row has what its record says, and the record's leaf. `appliance audit export --record` takes its
number, and proves that the log has it.
Sealed records for which the judge has no key have only their envelope. Requests
without a valid key have no records of their own: a row of `requests.counted` counts them.
"""

from __future__ import annotations

import csv
import io
from typing import Any

from appliance.auditor.claims.case import Case
from appliance.auditor.records import of_version_1
from appliance.auditor.report.engagement import Interval
from appliance.transparency.tree import leaf_hash

_SAID = ("seq", "epoch", "time", "event", "request", "tenant", "endpoint", "model", "status", "code", "finish",
         "duration_us", "prompt_tokens", "completion_tokens")
COLUMNS = (*_SAID, "counted", "sealed", "proved", "leaf")
_FORMULA = ("=", "+", "-", "@")  # a spreadsheet would compute what begins so


def table(case: Case, period: Interval | None = None) -> tuple[bytes, int]:
    """Return the rows of a log whose form has been examined, and how many they are; with a period,
    those in it."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    count = 0
    lines = [line for line in case.lines if not of_version_1(line)]
    own_word = {boot.epoch for boot in case.log.unbound}
    for place, (record, line) in enumerate(zip(case.records, lines, strict=False)):
        if period is None or period.has(str(record["time"])):
            proved = place < case.log.proved and record["epoch"] not in own_word
            writer.writerow([*(_cell(record.get(name, "")) for name in _SAID), _counted(record),
                             "yes" if "sealed" in record else "no", "yes" if proved else "no",
                             leaf_hash(line[:-1]).hex()])
            count += 1
    return out.getvalue().encode(), count


def _cell(value: Any) -> str:
    text = str(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


def _counted(record: dict[str, Any]) -> str:
    """How many requests a record counts that have none of their own; empty for all other events."""
    if record["event"] != "requests.counted":
        return ""
    refused = sum(count for codes in record.get("refused", {}).values() for count in codes.values())
    return str(refused + sum(record.get("answered", {}).values()))
