"""How kernels ask for memory, in their compiled code: no result shows it, only speed."""

from __future__ import annotations

import functools
import re
import subprocess
import sys

import pytest

from tests.support.environment import children_unmeasured
from tests.support.extent import WHOLE

pytestmark = pytest.mark.guests  # kernels of other targets are made

LINES = {"Q8_0": 9, "Q4_K": 9}  # of a turn of the loop: 16 blocks of 34 bytes; a quarter of 16 blocks of 144
LOCALITY = {"3": "n", "2": "f"}  # into every cache; into the second-level one


MADE = {"avx2": ("IQ4_NL",), "amx": ("Q8_0", "Q4_K") if WHOLE else ("Q8_0",), "zen5": ("Q8_0",),
        "avx512vnni": ("Q8_0", "Q4_K", "Q6_K", "MXFP4")}


@functools.cache
def _made(target: str) -> str:
    """The compiled products of a target's formats."""
    names = [f"product_{name.lower()}" for name in MADE[target]]
    with children_unmeasured():
        return subprocess.run([sys.executable, "-m", "tests.support.kernel_llvm", target, *names],
                              capture_output=True, text=True, check=True, timeout=600).stdout


def _order(target: str, name: str, kind: str) -> str:
    """What the loop of a patch does in a turn, in order: n and f ask for a line, a dot is a product."""
    body = re.search(rf"^define [^\n]*@patch_{name.lower()}_{kind}\(.*?^}}", _made(target),
                     re.MULTILINE | re.DOTALL)
    assert body is not None
    found = re.findall(r"@llvm\.prefetch.*i32 0, i32 (\d), i32 1\)|@llvm\.x86\.avx512\.(vpdpbusd)", body[0])
    return "".join("." if product else LOCALITY[locality] for locality, product in found)


@pytest.mark.parametrize(("target", "tokens", "name"), [
    ("amx", 1, "Q8_0"), pytest.param("amx", 1, "Q4_K", marks=pytest.mark.soak), ("avx512vnni", 4, "Q8_0"),
    ("avx512vnni", 4, "Q4_K")])
def test_some_are_asked_evenly(target: str, tokens: int, name: str) -> None:
    """Each line once for the second-level cache, no more than two with a product; where that gains anything, each
    again for the first."""
    order = _order(target, name, f"1_{tokens}_ahead1")
    assert LINES[name] == order.count("f")
    assert (0 if (target, name) == ("amx", "Q4_K") else LINES[name]) == order.count("n")
    assert max(part.count("f") for part in order.split(".")) <= 2
    assert order.count(".") > 3


def test_others_are_asked_at_the_beginning() -> None:
    """All lines before the first product."""
    assert re.fullmatch(r"n{9}\.+", _order("zen5", "Q8_0", "1_1_ahead1"))


@pytest.mark.parametrize(("target", "name", "kinds"), [
    ("avx512vnni", "Q8_0", {"1_1", "1_2"}), ("avx512vnni", "Q4_K", {"1_1", "1_2"}),
    ("avx512vnni", "MXFP4", {"1_1"}), ("avx512vnni", "Q6_K", {"1_1_ahead1_near", "1_2_ahead1_near"}),
    ("zen5", "Q8_0", set()), ("amx", "Q8_0", set())])
def test_one_token_or_two_are_left_to_the_hardware(target: str, name: str, kinds: set[str]) -> None:
    """By `avx512vnni`: it asks for nothing, or where lines are not read in order, for each shortly before. Two tokens
    of MXFP4 ask as more do."""
    found = re.findall(rf"^define [^\n]*@patch_{name.lower()}_(1_[12](?:_ahead1)?(?:_near)?)\(", _made(target),
                       re.MULTILINE)
    assert kinds == {kind for kind in found if not kind.endswith("ahead1")}
    for kind in kinds:
        assert set(_order(target, name, kind)) == ({"n", "."} if kind.endswith("near") else {"."})


def test_registers_are_spilled_to_whole_cache_lines() -> None:
    """By patches of one token, too, where a record is two registers of rows: a spill that crosses a cache line cost
    IQ4_NL half of its speed."""
    found = re.findall(r"^define [^\n]*@(patch_iq4_nl_\w+)\((.*?)^}", _made("avx2"), re.MULTILINE | re.DOTALL)
    assert {"patch_iq4_nl_1_1_ahead1"} <= {name for name, _ in found}
    assert [] == [name for name, body in found if not re.search(r"alloca <16 x i32>, align 64", body)]
