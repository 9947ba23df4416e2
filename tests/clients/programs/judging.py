"""What must be true when a program has ended."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.clients.programs.relay import Seen


@dataclass(frozen=True)
class Outcome:
    """How a program ended, what it asked for, and the folder in which it ran. `expected`: codes of refusals that it
    knows what to do with."""

    done: subprocess.CompletedProcess[str]
    seen: list[Seen]
    work: Path
    expected: tuple[str, ...] = ()


def ran(outcome: Outcome) -> str:
    """Why a program failed: it said so, asked for nothing, or was refused something. Empty where it did not."""
    if outcome.done.returncode:
        return f"exit {outcome.done.returncode}: {outcome.done.stdout[-700:]} {outcome.done.stderr[-1500:]}".strip()
    refused = [each for each in outcome.seen if each.status >= 400
               and not any(f'"{code}"' in each.said for code in outcome.expected)]
    if refused:
        return f"refused: {refused[0].method} {refused[0].path} {refused[0].status} {refused[0].said}"
    if not any(each.method == "POST" for each in outcome.seen):
        return "it asked for nothing"
    lines = outcome.done.stdout.strip().splitlines()
    if lines and lines[-1].startswith('{"library"'):
        return "; ".join(f"{name}: {why}" for name, why in json.loads(lines[-1])["found"].items() if why)
    return ""


def called(most: int, *, twice: bool = False) -> Callable[[Outcome], str]:
    """The judge of a program that calls a tool so often, and then ends: none of its requests was left out, and each
    but the first found the beginning of its prompt in the cache, where the model has one. `twice`: it says the same
    again, streamed."""
    def judge(outcome: Outcome) -> str:
        scripted = [each for each in outcome.seen if each.altered]
        if why := ran(outcome):
            return why
        if len(scripted) != (most + 1) * (1 + twice):
            return f"{most} calls and an end were wanted, got {len(scripted)} requests with the tool"
        if any(each.cached for each in scripted) and not all(each.cached for each in scripted[1:]):
            return f"tokens from the cache: {[each.cached for each in scripted]}"
        return ""

    return judge


def wrote(outcome: Outcome) -> str:
    """The judge of a program that writes the file that its model says."""
    if why := ran(outcome):
        return why
    path = outcome.work / "color.py"
    text = path.read_text() if path.exists() else ""
    return "" if text == 'COLOR = "blue"\n' else f"color.py: {text!r}: {outcome.done.stdout[-700:]}"


def evaluated(outcome: Outcome) -> str:
    """The judge of promptfoo, by its report."""
    if why := ran(outcome):
        return why
    stats = json.loads((outcome.work / "report.json").read_text())["results"]["stats"]
    right = stats["successes"] > 0 and not stats["failures"] and not stats["errors"]
    return "" if right else f"its report: {stats}"
