"""Fuzz target: any bytes as a policy file. Only findings may come of it, and a valid policy must keep its digest."""

from __future__ import annotations

import json
from pathlib import Path

from appliance.codec.canonical import canonical
from appliance.policy import policy_digest, render, unenforced
from appliance.policy.digest import digested
from appliance.policy.explaining.checking import CheckResult, check_bytes
from appliance.policy.explaining.report import MAX_DIAGNOSTICS
from appliance.policy.language.upgrade import upgrade
from appliance.policy.schema.versions import LATEST

ROOT = Path(__file__).parents[2]

FRAGMENTS = [
    b"", b"a", b"a = 1", b"a = [1, 2,\n 3]", b'a "b" "c" { d = "e" }', b"a = <<E\nx\nE\n", b"a = <<-E\n  x\n  E\n",
    b"a = { b = 1, c : [true] }", b'a = "\\u0041\\U0001F600\\n"', b'a = "${b}"', b'a = "%{ if x }"', b"a = b.c[0]",
    b"a = f(1)", b"/* */ # x\n// y\n", b"a = -1.5e-3", b"a = null", b"limits { prompt_tokens = 1 }",
    b'privacy { redaction { pattern "x" { regex = "(a|b){1,5}[^c]\\\\d{2}" } } }', b"limits = { a = 1 }",
    b"appliance {\n schema = 3 }", b"limits { queued_requests = 0 }",
    b'tenants { commitment = "sha384:' + b"ab" * 48 + b'" }',
]


def seeds() -> list[bytes]:
    """Return the example policies of both schemas, pieces of syntax, and an example with Windows line ends."""
    files = [file for place in ("examples", "policies", "tests/goldens/schema_1")
             for file in sorted(ROOT.glob(f"{place}/*.hcl"))]
    whole = [file.read_bytes() for file in files]
    return whole + FRAGMENTS + [whole[0].replace(b"\n", b"\r\n")]


def fuzz(data: bytes) -> None:
    """Check one input; every finding must render, lie inside of the text, and stay within the bounds."""
    checked = check_bytes(data, "fuzz.hcl")
    lines = data.count(b"\n") + 1
    for finding in checked.diagnostics:
        if not (1 <= finding.line <= finding.end_line <= lines + 1 and finding.column >= 1 and finding.summary):
            raise AssertionError(f"a finding lies outside of the text: {finding!r}")
        if len(finding.source) > 200 or not finding.source.isprintable():
            raise AssertionError(f"a source line is not fit to print: {finding!r}")
    if len(checked.diagnostics) > 2 * MAX_DIAGNOSTICS:
        raise AssertionError("too many findings")
    render(checked.diagnostics)
    json.dumps([finding.as_json() for finding in checked.diagnostics])
    if checked.policy is None:
        if not any(finding.severity == "error" for finding in checked.diagnostics):
            raise AssertionError("neither a policy nor an error")
        return
    document = canonical(digested(checked.policy))
    if canonical(json.loads(document)) != document or len(policy_digest(checked.policy)) != 48:
        raise AssertionError("the canonical form is not stable")
    unenforced(checked.policy)
    _upgrade(data, checked)


def _upgrade(data: bytes, checked: CheckResult) -> None:
    """Upgrade a valid policy: a valid one of the latest schema comes of it, or decisions."""
    done = upgrade(data, "fuzz.hcl")
    if done.data is None:
        if not done.decisions:
            raise AssertionError("neither an upgrade nor a decision")
        return
    again = check_bytes(done.data, "fuzz.hcl")
    if again.policy is None or again.version != LATEST or upgrade(done.data).data != done.data:
        raise AssertionError("an upgrade is not valid, or not the last")
    if checked.version == LATEST and done.data != data:
        raise AssertionError("an upgrade changed a file of the latest schema")
