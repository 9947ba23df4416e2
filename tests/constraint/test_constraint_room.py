"""A limit on memory refuses constraints; it does not end the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from appliance.constraint.compiler import Compiler
from appliance.constraint.spec import JsonObject
from tests.constraint.walks import words

_PROGRAM = """
import resource, sys
from appliance.boot.planning import machine
from appliance.constraint.spec import JsonSchema
from appliance.errors import ApplianceError
from tests.constraint.bombs import SPECS
from tests.constraint.walks import allowed, compiler, words

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

_LATER = """
from appliance.boot.planning import machine
from appliance.constraint.spec import JsonObject
from appliance.errors import ApplianceError
from tests.constraint.walks import compiler

machine.limit_growth(1 << 20)
compiler().prepare()
try:
    compiler().compile(JsonObject())
except ApplianceError as error:
    print(error.code)
"""


def _codes(mebibytes: int, when: str) -> set[str]:
    """What all bombs come to, in a process that may grow by so much."""
    done = subprocess.run([sys.executable, "-c", _PROGRAM, str(mebibytes), when], cwd=Path(__file__).parents[2],
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


class _Counted:
    """A tokenizer that counts how often it is asked for the bytes of a token."""

    def __init__(self) -> None:
        self._words, self.asked = words(), 0
        self.vocab_size, self.eot_ids, self.encode = (
            self._words.vocab_size, self._words.eot_ids, self._words.encode)

    def pieces(self) -> list[tuple[bytes, bool]]:
        self.asked += self.vocab_size
        return self._words.pieces()


def test_a_vocabulary_is_made_ready_ahead() -> None:
    """The first constraint reads no vocabulary: all would wait for that."""
    counted = _Counted()
    made = Compiler(counted)
    made.prepare()
    asked = counted.asked
    assert asked >= counted.vocab_size
    assert made.compile(JsonObject()).begin().mask()
    assert asked == counted.asked


def test_a_vocabulary_without_room_is_left_for_later() -> None:
    """Where memory is short, making ready does nothing, and ends nothing."""
    done = subprocess.run([sys.executable, "-c", _LATER], cwd=Path(__file__).parents[2], capture_output=True, text=True,
                          check=False)
    assert (0, "constraint-no-room\n", "") == (done.returncode, done.stdout, done.stderr[-2000:])
