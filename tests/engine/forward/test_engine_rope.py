"""The table of rotations is the same bits whatever instructions numpy finds on a CPU."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc

import numpy as np

from appliance.boot.selftest.tiny_model import SHAPE
from appliance.engine.forward.rotations import turns

TABLE = """
import dataclasses, hashlib
from appliance.boot.selftest.tiny_model import SHAPE
from appliance.engine.forward.rotations import turns
shape = dataclasses.replace(SHAPE, rope=dataclasses.replace(SHAPE.rope, base=100000.0))
print(hashlib.sha256(turns(shape.rope, shape.head_size, 16384, None).tobytes()).hexdigest())
"""


def _digest(**environment: str) -> str:
    done = subprocess.run([sys.executable, "-c", TABLE], capture_output=True, text=True, check=True,
                          env={**os.environ, **environment})
    return done.stdout.strip()


def test_table_is_the_same_without_vector_instructions() -> None:
    """With all of numpy's optional CPU features off, a long table has the same digest as with them."""
    found = np.show_config(mode="dicts")["SIMD Extensions"]["found"]
    assert _digest() == _digest(NPY_DISABLE_CPU_FEATURES=" ".join(found))


def test_a_long_table_takes_little_beside_itself() -> None:
    """What is computed in float64 on the way is no multiple of the table: no sum has that."""
    tracemalloc.start()
    try:
        table = turns(SHAPE.rope, SHAPE.head_size, 1 << 16, None)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * table.nbytes + (8 << 20)
