"""Tables of words: where their fields are, and that compiled code reads and writes what Python does."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from appliance.kernels.layouts.tables import At, Numbers, Room, Table
from appliance.kernels.runtime.memory import Words

# A function that Python and compiled code run alike; in a process of its own, which compiles for one target for good.
PROGRAM = """
import ctypes
from dataclasses import dataclass
import numba, numpy
from appliance.kernels.compiler import records, vector
from appliance.kernels.layouts.step import Op, Step, Weight

@records.record
@dataclass(frozen=True)
class Pair:
    weight: Weight
    times: int

def columns(pair):
    return pair.weight.COLUMNS * pair.times

def look(address):
    step = Step(address)
    op = step.PROGRAM[1]
    return (step.ROWS, step.EPSILON, step.TOKENS[2], columns(Pair(step.OUTPUT_WEIGHT[-1], 3)), op.NORM + 0,
            step.EMBEDDING_WEIGHT.GATHER, op.NORM.BIAS)

memory = numpy.arange(1000, 1000 + (Step.nbytes + 2 * Op.nbytes) // 8)
for name in ("PROGRAM", "TOKENS"):
    memory[Step.offsets[name] // 8] = memory.ctypes.data + Step.nbytes
ctypes.c_float.from_address(memory.ctypes.data + Step.offsets["EPSILON"]).value = 0.25
plain = look(memory.ctypes.data)
columns = numba.njit(columns)

@numba.njit
def put(address, value):
    Step(address).ROWS = value

print(plain == numba.njit(look)(memory.ctypes.data), plain[1], len(set(plain)))
put(memory.ctypes.data, 5)
print(Step(memory.ctypes.data).ROWS)
"""


class Point(Table):
    """A table with a field of every kind but a table."""

    X: int
    Y: float
    PLACE: Room
    NUMBERS: At[Numbers]


class Line(Table):
    """A table that has tables within, and others elsewhere."""

    LENGTH: int
    FIRST: Point
    SECOND: Point
    MORE: At[Point]


def test_fields_follow_each_other() -> None:
    """A word has 8 bytes; a table within takes its own size."""
    assert {"X": 0, "Y": 8, "PLACE": 16, "NUMBERS": 24} == Point.offsets
    assert {"LENGTH": 0, "FIRST": 8, "SECOND": 40, "MORE": 72} == Line.offsets
    assert (32, 80) == (Point.nbytes, Line.nbytes)


def test_reading_in_python() -> None:
    """Each kind of field, through tables within and addresses."""
    numbers, points, line = np.array([7, 8, 9]), Words(2 * Point.nbytes), Words(Line.nbytes)
    points.put(Point, {"X": -3, "NUMBERS": numbers.ctypes.data}, Point.nbytes)
    line.put(Line, {"LENGTH": 5, "MORE": points.address})
    line.put(Point, {"X": 11, "Y": 0.5}, Line.offsets["SECOND"])
    found = Line(line.address)
    assert (5, 11, 0.5, 0) == (found.LENGTH, found.SECOND.X, found.SECOND.Y, found.FIRST.X)
    assert (-3, 9) == (found.MORE[1].X, found.MORE[1].NUMBERS[2])
    assert line.address + 40 + 16 == found.SECOND.PLACE
    with pytest.raises(AttributeError, match="Line has no field WIDTH"):
        _ = found.WIDTH


def test_compiled_code_reads_the_same() -> None:
    """Words, floats, numbers, tables within and behind an address, a record's members; and a word is written."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert ["True", "0.25", "7", "5"] == done.stdout.split()
