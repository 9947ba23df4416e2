"""The output of a running process so far."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support import waiting

Record = dict[str, Any]


def lines(path: Path) -> list[str]:
    """The lines that are finished: who reads while another writes may meet a part of the last one."""
    text = path.read_text(errors="replace") if path.exists() else ""
    return text[:text.rfind("\n") + 1].splitlines()


def records(path: Path) -> list[Record]:
    """A log's records so far, which are JSON, one a line."""
    return [json.loads(line) for line in lines(path)]


def record(path: Path, wanted: Callable[[Record], bool], what: str) -> Record:
    """The first such record of a log, waited for: that of a client that left is written when that is noticed."""
    found = waiting.until(lambda: next(filter(wanted, records(path)), None), what, lambda: records(path)[-8:])
    assert found is not None
    return found


def audited(path: Path, request_id: str) -> Record:
    """The record of a request, by the id that came with its answer."""
    return record(path, lambda each: request_id == each.get("request") and each["event"].startswith("request."),
                  f"record of {request_id}")
