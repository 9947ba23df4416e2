"""Self-test of the kernels: known answers for all of them, and one flipped bit anywhere that matters is noticed."""

from __future__ import annotations

import ctypes
import hashlib
import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appliance.boot.selftest import inputs as kernel_inputs
from appliance.boot.selftest import kernels as kernel_answers
from appliance.boot.selftest import run as selftest
from appliance.boot.selftest import tiny_model as kernel_model
from appliance.errors import BootError, EngineError
from appliance.kernels.layouts.shapes import SHAPES
from appliance.kernels.runtime import ahead, table, targets
from appliance.kernels.runtime.table import KernelTable
from appliance.kernels.runtime.threads import Pool
from tests.goldens import kernel_answers as goldens
from tests.support import forked
from tests.support.environment import children_unmeasured, unmeasured
from tests.support.require import absent

# Without a prebuilt library every format costs seconds of compiling: then one stands for all.
FEW = frozenset({"Q8_0"})
QUANTISED = frozenset(name for name, shape in SHAPES.items() if shape.activation != "f32")


@pytest.fixture(scope="module")
def kernels() -> KernelTable:
    """The kernels that a boot on this machine would use."""
    return table.load()


@pytest.fixture(scope="module")
def library() -> Path:
    """The prebuilt library, which `make kernels` makes."""
    path = ahead.default_path(targets.detect())
    try:
        ahead.open_library(path, targets.detect())
    except EngineError as error:
        absent(f"{error.summary}: run `make kernels`")
    return path


def _formats(kernels: KernelTable) -> frozenset[str] | None:
    return None if kernels.origin == "ahead" else FEW


def test_every_kernel_has_a_known_answer_and_no_answer_is_left_over(kernels: KernelTable) -> None:
    """The table of answers has exactly the tests of all kernels."""
    assert sorted(kernel_answers.selection(kernels, None)) == sorted(kernel_answers.known())


@pytest.mark.parametrize("test", list(kernel_answers.known()))
def test_no_kernel_takes_part_in_a_known_answer(test: str) -> None:
    """Each pinned answer is what plain numpy, or the plain engine, makes of the fixed inputs."""
    assert hashlib.sha256(goldens.exact(test)).hexdigest() == kernel_answers.known()[test]


def test_kernels_of_this_machine_pass(kernels: KernelTable) -> None:
    """Every kernel gives the known bits; the digest over the results is the same on a second run."""
    seen: list[tuple[int, int]] = []
    first = selftest.run(kernels, formats=_formats(kernels), progress=lambda done, total: seen.append((done, total)))
    assert [] == [result.name for result in first.failures]
    assert first.digest == selftest.run(kernels, formats=_formats(kernels)).digest
    assert seen[-1][0] == seen[-1][1]
    assert first.digest.hex() in selftest.require(first)


def test_formats_choose_kernels(kernels: KernelTable) -> None:
    """A model's formats select their own kernels and all that belong to no format."""
    chosen = kernel_answers.selection(kernels, frozenset({"Q4_0", "F32"}))
    assert {"product_q4_0", "gather_q4_0", "quantise_q8_32", "step/Q4_0", "lockstep_run"} <= set(chosen)
    assert not {"product_q4_k", "gather_q8_0", "quantise_q8_256", "step/Q8_0"} & set(chosen)


def _blocks() -> Iterator[Any]:
    """Targets with formats: of each kind of product one, by turns for the least and the best target that this CPU can
    run; all others in the soak. A kind's branches are the same in all targets, and compiling takes seconds each. AMX
    has branches of its own, which are emulated where this CPU has its vectors only."""
    names = [target.name for target in targets.supported()]
    if "avx512vnni" in names and "amx" not in names:
        yield pytest.param("amx", ["IQ4_NL", "IQ4_XS"], marks=pytest.mark.guests, id="amx")
        yield pytest.param("amx", sorted(QUANTISED - {"IQ4_NL", "IQ4_XS"}), marks=pytest.mark.soak, id="amx-others")
    for name in names:
        chosen = [each for place, each in enumerate(("F16", "Q4_1", "Q6_K", "IQ4_XS"))
                  if name == (names[-1], names[0])[place % 2]]
        if chosen:
            yield pytest.param(name, chosen, marks=pytest.mark.guests, id=name)
        yield pytest.param(name, sorted(set(SHAPES) - {*chosen}), marks=pytest.mark.soak, id=f"{name}-others")


@pytest.mark.slow
@pytest.mark.parametrize(("target", "formats"), list(_blocks()))
def test_no_product_runs_code_that_the_self_test_does_not(target: str, formats: Sequence[str]) -> None:
    """Of the blocks that a product's machine code is made of, those that products of many other sizes run, too, for
    each target of this CPU."""
    with children_unmeasured():
        done = subprocess.run([sys.executable, "-m", "tests.support.kernel_blocks", target, *formats],
                              cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    assert {name: [] for name in formats} == json.loads(done.stdout)


class _WithStranger:
    """A table with one more kernel, for which no answer is known."""

    origin = "ahead"

    def __init__(self, kernels: KernelTable, name: str) -> None:
        self.target, self.names = kernels.target, (name,)


@pytest.mark.parametrize("name", ["product_q9_9", "attention_fancy", "step"])
def test_a_kernel_without_an_answer_fails(kernels: KernelTable, name: str) -> None:
    """A kernel that nobody wrote an answer for stops the boot by its name."""
    tested = selftest.run(_WithStranger(kernels, name))  # type: ignore[arg-type]
    assert [name] == [result.name for result in tested.failures]
    with pytest.raises(BootError, match=f"{name}: expected a known answer, found no known answer") as caught:
        selftest.require(tested)
    assert "self-test-failed" == caught.value.code


def test_a_flipped_bit_in_packed_weights_fails(kernels: KernelTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """One bit in the last record of a matrix changes the answer of its format's product and pass."""
    formats = kernel_answers.formats_of(kernels) if kernels.origin == "ahead" else FEW
    original = kernel_inputs.packed

    def flipped(*arguments: Any) -> Any:
        memory = original(*arguments)
        memory.view(np.uint8)[-7] ^= 1
        return memory

    monkeypatch.setattr(kernel_inputs, "packed", flipped)
    tested = selftest.run(kernels, formats=formats)
    failed = {result.name for result in tested.failures}
    assert {f"product_{name.lower()}" for name in formats} | {f"step/{name}" for name in formats} <= failed
    assert {"quantise_q8_32", "lockstep_run", "sha256/0"} & failed == set()


def test_a_flipped_bit_in_a_tile_or_a_bias_fails(kernels: KernelTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """One bit of a weight that the pass gets in a tile, or of a bias, changes the answer of the pass."""
    packed, stream, matrices = kernel_inputs.packed, kernel_inputs.stream, []

    def in_tiles(*arguments: Any) -> Any:
        memory = packed(*arguments)
        matrices.append(memory)
        if len(matrices) == len([shape for shape in kernel_model.tensors().values() if len(shape) == 2]) + 1 + 4:
            memory.view(np.uint8)[-7] ^= 64  # of the output of attention, of the second source
        return memory

    def in_bias(label: str, nbytes: int) -> Any:
        found = stream(label, nbytes)
        found[-1] ^= np.uint8(label == "blk.1.attn_v.bias")
        return found

    for name, changed in (("packed", in_tiles), ("stream", in_bias)):
        with monkeypatch.context() as patched:
            patched.setattr(kernel_inputs, name, changed)
            expected, found = kernel_answers.answer(kernels, "step/Q8_0")
        assert expected != found, name
    assert kernel_answers.answer(kernels, "step/Q8_0")[0] == kernel_answers.answer(kernels, "step/Q8_0")[1]


def test_a_flipped_bit_in_an_expected_answer_fails(kernels: KernelTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """One bit in the table of answers is found, named, and changes the digest."""
    good = selftest.run(kernels, formats=FEW)
    answers = dict(kernel_answers.known())
    answers["gather_q8_0"] = f"{int(answers['gather_q8_0'], 16) ^ 1:064x}"
    monkeypatch.setattr(kernel_answers, "known", lambda: answers)
    tested = selftest.run(kernels, formats=FEW)
    assert ["gather_q8_0"] == [result.name for result in tested.failures]
    assert good.digest != tested.digest


TARGET = """
import sys
from appliance.boot.selftest import run as selftest
from appliance.kernels.runtime import table
tested = selftest.run(table.load(sys.argv[1]))
print(",".join(result.name for result in tested.failures) or "passed")
"""


@pytest.mark.soak
@pytest.mark.parametrize("target", [target.name for target in targets.known()])
def test_one_table_serves_every_target(target: str) -> None:
    """Each target that this CPU can run gives the known answers, in a process of its own."""
    try:
        targets.runnable(target)
    except EngineError as error:
        pytest.skip(error.summary)
    done = subprocess.run([sys.executable, "-c", TARGET, target], capture_output=True, text=True, check=True)
    assert "passed" == done.stdout.strip()


SPOILED = """
import sys
from pathlib import Path
from appliance.boot.selftest import run as selftest
from appliance.kernels.runtime import table
tested = selftest.run(table.load(library=Path(sys.argv[1])))
print(",".join(result.name for result in tested.failures))
"""


def _spoil(library: Path, folder: Path, offset: int, bit: int) -> str:
    """Self-test with a copy of the library with one bit flipped, and a manifest that agrees: what fails, or `died`."""
    folder.mkdir()
    data = bytearray(library.read_bytes())
    data[offset] ^= 1 << bit
    copy = folder / library.name
    copy.write_bytes(data)
    shutil.copy(library.with_suffix(".json"), folder)
    manifest = copy.with_suffix(".json")
    document = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**document, "sha256": hashlib.sha256(data).hexdigest()}))
    with forked.piped([str(copy)], unmeasured(), SPOILED) as child:
        try:
            code = child.wait(600)
        except subprocess.TimeoutExpired:
            child.kill()
            return "died"
        assert child.stdout is not None
        return child.stdout.read().decode().strip() if code == 0 else "died"


def _places(data: bytes, pattern: bytes) -> Iterator[int]:
    at = data.find(pattern)
    while at >= 0:
        yield at
        at = data.find(pattern, at + 1)


def test_a_flipped_bit_in_a_constant_of_the_library_fails(library: Path, tmp_path: Path) -> None:
    """The lowest bit of the exponential's leading coefficient, wherever the library has it, fails every pass."""
    places = list(_places(library.read_bytes(), struct.pack("<f", 0.6931471824645996)))
    assert 1 <= len(places)
    failed = [_spoil(library, tmp_path / str(place), place, 0) for place in places[:4]]
    assert all("step/" in names for names in failed)


def _code(library: Path, kernel: str) -> int:
    """Offset of a kernel's machine code in the file: found by its bytes in memory and its place in a page."""
    handle = ctypes.CDLL(str(library))
    address = ctypes.cast(getattr(handle, ahead.PREFIX + kernel), ctypes.c_void_p).value
    assert address is not None
    code = ctypes.string_at(address, 1024)
    return next(at for at in _places(library.read_bytes(), code) if at % 4096 == address % 4096)


@pytest.mark.slow
def test_flipped_bits_in_code_are_noticed(library: Path, tmp_path: Path) -> None:
    """Bits flipped at even distances through code of products kill the process or fail a product, but for few.

    A bit in padding or in a prefetch changes no result, so not every one can be noticed.
    """
    start = _code(library, "product_q4_0")
    outcomes = [_spoil(library, tmp_path / str(at), start + at, at % 7) for at in range(16, 400, 48)]
    noticed = [outcome for outcome in outcomes if outcome]
    assert len(outcomes) // 2 < len(noticed)
    assert all(outcome == "died" or "product_" in outcome for outcome in noticed), outcomes


def test_a_pool_that_falls_out_of_step_fails(kernels: KernelTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the engine in a test is a failed test with the error's code, not a crash."""
    def fail(_pool: Pool) -> None:
        raise EngineError("2 kernel threads do not keep step", code="threads")

    monkeypatch.setattr(Pool, "check", fail)
    tested = selftest.run(kernels, formats=FEW)
    assert {"lockstep_probe", "lockstep_run", "lockstep_spin", "lockstep_stop", "lockstep_work"} == {
        result.name for result in tested.failures}
    assert {"error threads"} == {result.found for result in tested.failures}
