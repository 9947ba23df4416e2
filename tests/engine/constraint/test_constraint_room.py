"""A limit on memory refuses constraints; it does not end the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import resource, sys
from appliance.boot.planning import machine
from appliance.engine.constraint.spec import JsonSchema
from appliance.errors import ApplianceError
from tests.engine.constraint.bombs import SPECS
from tests.engine.constraint.walks import allowed, compiler, words

made = compiler()
early = made.compile(JsonSchema({"type": "object"})) if sys.argv[2] == "early" else None
machine.limit_growth(int(sys.argv[1]) << 20)
found = set()
for spec in SPECS.values():
    try:
        walk = (early or made.compile(spec)).begin()
        for _ in range(30):
            tokens = [token for token in allowed(walk) if token not in words().eot_ids]
            if not tokens:
                break
            walk.accept(tokens[len(tokens) // 2])
        found.add("fine")
    except ApplianceError as error:
        found.add(error.code)
print(*sorted(found))
"""


def _codes(mebibytes: int, when: str) -> set[str]:
    """What all bombs come to, in a process that may grow by so much."""
    done = subprocess.run([sys.executable, "-c", _PROGRAM, str(mebibytes), when], cwd=Path(__file__).parents[3],
                          capture_output=True, text=True, check=False)
    assert (0, "") == (done.returncode, done.stderr[-2000:])
    return set(done.stdout.split())


@pytest.mark.parametrize("mebibytes", [1, 16, 60])
def test_without_room_all_are_refused(mebibytes: int) -> None:
    """In words of our own, before compiled code asks for any."""
    assert {"constraint-no-room"} == _codes(mebibytes, "late")


def test_an_answer_under_way_fails_alone() -> None:
    """Its constraint was compiled when there was room."""
    assert {"constraint-no-room"} == _codes(40, "early")


def test_with_little_more_none_ends_the_process() -> None:
    """Each is fine or refused; they are not given back, so that room ends on the way."""
    found = _codes(80, "late")
    assert "fine" in found
    assert found <= {"fine", "constraint-no-room", "constraint-refused", "constraint-too-large", "constraint-stuck"}
