"""The kernels on aarch64: lowered here for its baseline, run by QEMU, the same bits as on this CPU.

What QEMU runs is the appliance's own code with Debian's arm64 Python: the self-test with its known answers, whole
passes, threads in lock-step. `make soak` does it with every block format, and the commands as well.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from appliance.cli.main import main
from appliance.errors import EngineError
from appliance.kernels.layouts import shapes
from appliance.kernels.runtime import ahead, targets
from tests.support import arm64, kernel_bits, vector_bits
from tests.support.engines import kernels, synthetic_model
from tests.support.forward_bits import digests
from tests.support.require import absent

pytestmark = [pytest.mark.guests, pytest.mark.timeout(600),
              pytest.mark.skipif(not arm64.NEON.foreign, reason="this CPU is an aarch64: every other test runs on it")]


@pytest.fixture(scope="module", autouse=True)
def _tools() -> None:
    arm64.need()


@pytest.fixture(scope="module")
def library() -> Path:
    """Kernels for a few formats, so that the test is short."""
    return arm64.library()


@pytest.fixture(scope="module")
def whole() -> Path:
    """Every kernel."""
    return arm64.library(tuple(shapes.SHAPES))


SELF_TEST = """
import json, platform, sys
from pathlib import Path
from appliance.boot.selftest import run as selftest
from appliance.kernels.runtime import table
tested = selftest.run(table.load(library=Path(sys.argv[1])))
print(json.dumps([platform.machine(), tested.target, tested.origin, [result.name for result in tested.failures],
                  [result.name for result in tested.results]]))
"""


def _self_test(library: Path) -> list[str]:
    """Names of the tests that passed on an aarch64; all did."""
    machine, target, origin, failures, names = json.loads(arm64.run("-c", SELF_TEST, library))
    assert ["aarch64", "neon", "ahead", []] == [machine, target, origin, failures]
    return list(names)


def test_self_test_passes(library: Path) -> None:
    """The self-test of the boot: each kernel gives its one known answer, and two threads keep step."""
    names = _self_test(library)
    assert {f"step/{name}" for name in arm64.FEW} | {
        "attend_f16", "attend_q8", "attend_q4", "lockstep_run", "fetch_sealed", "fetch_plain", "pack_rows",
        "product_q4_k", "quantise_q8_256"} <= set(names)


def test_whole_passes_give_the_same_bits(library: Path, tmp_path: Path) -> None:
    """300 positions of a Q4_K and Q6_K model with every format of the cache."""
    model = tmp_path / "mixed.gguf"
    model.write_bytes(synthetic_model("mixed"))
    found = arm64.run("-m", "tests.support.forward_bits", "neon", library, model).split()
    assert digests(model, 2, kernels()) == found


def test_vector_operations_give_the_same_bits(tmp_path: Path) -> None:
    """Every binary16, ties, subnormals, sums that nearly cancel: each operation that differs between CPUs."""
    made, linked = tmp_path / "bits.o", tmp_path / "bits.so"
    subprocess.run([sys.executable, "-m", "tests.support.vector_bits", "neon", made], cwd=arm64.ROOT, check=True)
    subprocess.run([arm64.LINKER, "-shared", "-o", linked, made], check=True)
    found: dict[str, str] = json.loads(arm64.run("-m", "tests.support.vector_bits", "-", linked))
    assert vector_bits.digests(vector_bits.outputs()) == found


def test_this_cpu_is_refused_the_library(library: Path) -> None:
    """What was built for another architecture is not even opened here."""
    from appliance.kernels.runtime import table

    with pytest.raises(EngineError, match="this CPU cannot run kernels for neon: it is no aarch64") as caught:
        table.load("neon", library)
    assert "target-unsupported" == caught.value.code


def test_without_its_library_the_error_says_what_to_build(tmp_path: Path) -> None:
    """An aarch64 machine with libraries for x86-64 alone names what it runs, what there is, and the command."""
    for target in targets.known("x86_64"):
        ahead.default_path(target, tmp_path).touch()
    found = arm64.run("-c", "import sys; from pathlib import Path\n"
                      "from appliance.kernels.runtime import ahead, table\n"
                      "ahead.default_path.__defaults__ = (Path(sys.argv[1]),)\n"
                      "try: table.load()\n"
                      "except Exception as error: print(error)", tmp_path)
    assert "it runs neon; " in found
    assert "has amx, avx2, avx512vnni, portable, zen5" in found
    assert "appliance kernels build --target neon" in found


@pytest.mark.soak
def test_every_known_answer(whole: Path) -> None:
    """The self-test with the kernels of every block format."""
    assert {f"step/{name}" for name in shapes.SHAPES} <= set(_self_test(whole))


@pytest.mark.soak
def test_every_product_gives_the_same_bits(whole: Path) -> None:
    """Random weights in every format, tiles of 1 to 6 tokens."""
    names = list(shapes.SHAPES)
    found = json.loads(arm64.run("-m", "tests.support.kernel_bits", "neon", ",".join(names), whole))
    assert kernel_bits.bits(kernels(), names) == found


INFER = """
import sys
from pathlib import Path
from appliance.cli.main import main
from appliance.kernels.runtime import ahead
ahead.default_path.__defaults__ = (Path(sys.argv.pop(1)),)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.soak
def test_the_demo_model_answers_the_same(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`appliance infer` gives the same tokens as on this CPU."""
    if not (arm64.ROOT / "build/models").is_dir():
        absent("no demo model: run `make demo`")
    words = ["infer", str(arm64.ROOT / "examples/demo.hcl"), "--models", str(arm64.ROOT / "build/models"), "--prompt",
             "Name three colours.", "--max-tokens", "24", "--temperature", "0", "--json"]
    assert 0 == main(words)
    here: dict[str, Any] = json.loads(capsys.readouterr().out)
    there = json.loads(arm64.run("-c", INFER, whole.parent, *words))
    assert (here["prompt_tokens"], here["tokens"]) == (there["prompt_tokens"], there["tokens"])
