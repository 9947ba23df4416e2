"""The codes of errors: what each means, why it stops, what to do, and the messages that have it."""

from __future__ import annotations

import functools
import json
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from appliance.api.problems import PROBLEMS, Problem
from appliance.manual.forms import Form

_FOLDER = Path(__file__).parent
REQUESTS = "Requests"
_DO: Mapping[int, str] = {
    400: "Change the request: docs/reference/api.md.",
    401: "Send the key: -H \"authorization: Bearer $(cat KEYS/NAME.api-key)\"; a new one: appliance key new",
    403: "Use a key whose tenant has the role: docs/guides/tenants.md.",
    404: "Ask for a path or model that is there: GET /v1/models.",
    429: "Ask again after the time in Retry-After, or raise `limits` in the policy.",
    500: "Look at the service's log, which has the code.",
    503: "Ask again after the time in Retry-After.",
    504: "Ask for a shorter answer, or raise limits.answer_timeout.",
}


@dataclass(frozen=True, slots=True)
class CodeEntry:
    """A code, and what a person wants to know of it."""

    code: str
    group: str
    means: str
    why: str
    fix: str
    forms: tuple[Form, ...] = ()


@functools.cache
def entries() -> dict[str, CodeEntry]:
    """Return all codes, in the order of the manual; those of the API's answers come last."""
    groups = tomllib.loads((_FOLDER / "codes.toml").read_text())
    forms = json.loads((_FOLDER / "forms.json").read_text())
    found = {code: CodeEntry(code, group, means, why, fix, tuple(Form(*each) for each in forms.get(code, ())))
             for group, rows in groups.items() for code, (means, why, fix) in rows.items()}
    return found | {code: _of_request(code, problem) for code, problem in PROBLEMS.items()}


def _of_request(code: str, problem: Problem) -> CodeEntry:
    """Return a code of the API's answers, by its row there."""
    means = f"{problem.message[0].upper()}{problem.message[1:]}."
    retry = "" if problem.retry_after is None else " Another try can succeed."
    return CodeEntry(code, REQUESTS, means, f"HTTP status {problem.status}, type {problem.type}.{retry}",
                     _DO.get(problem.status, _DO[400]))


def entry(code: str) -> CodeEntry | None:
    """Return the entry of a code, or None. `evidence-RULE` is a rejection by that rule."""
    known = entries()
    if code in known:
        return known[code]
    rule = code.removeprefix("evidence-")
    if rule == code or not rule:
        return None
    rejected = known["evidence-rejected"]
    return CodeEntry(code, rejected.group, f"The evidence is genuine, and fails the rule `{rule}`.", rejected.why,
                     rejected.fix)


def page() -> str:
    """Return the page of all codes, as Markdown."""
    lines = ["# Error codes", "", "Made by `make reference`; do not edit. `appliance explain CODE` prints a row, with "
             "the messages that have the code.", "", "An error is a code, what was found, and a hint. With `--json` it "
             "is an object with `code`, `reason` and `hint`."]
    group = ""
    for each in entries().values():
        if each.group != group:
            group = each.group
            lines += ["", f"## {group}", "", "| code | what it means | why it stops | what to do |",
                      "|---|---|---|---|"]
        lines.append(f"| `{each.code}` | {_cell(each.means)} | {_cell(each.why)} | {_cell(each.fix)} |")
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(page())
