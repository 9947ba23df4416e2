"""What a running process has written so far."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECONDS = 30
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
    deadline = time.monotonic() + SECONDS
    while True:
        found = records(path)
        for each in found:
            if wanted(each):
                return each
        assert time.monotonic() < deadline, f"no {what} in {found}"
        time.sleep(0.01)


def audited(path: Path, request_id: str) -> Record:
    """The record of a request, by the id that came with its answer."""
    return record(path, lambda each: request_id == each.get("request") and each["event"].startswith("request."),
                  f"record of {request_id}")
