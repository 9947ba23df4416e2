"""Rows to kernel order by compiled code: the bytes of `kernel_order.interleave`, and none beside them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from appliance.engine.forward.packing import Packing, blocks, moves
from appliance.errors import EngineError
from appliance.kernels.layouts.pack import KINDS
from appliance.models.file import layout, quants
from appliance.models.sealed import order as kernel_order
from tests.support import switching
from tests.support.engines import kernels


@pytest.fixture(scope="module")
def packing() -> Packing:
    """The kernel of this CPU."""
    return Packing(kernels())


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 80])
@pytest.mark.parametrize("name", quants.FORMATS)
def test_the_same_bytes(name: str, rows: int, packing: Packing) -> None:
    """Any bytes, wherever they lie, come in the order of the interpreter; what is beside the buffer stays as it is."""
    block_format, columns = quants.FORMATS[name], 768
    nbytes, packed = rows * block_format.row_nbytes(columns), layout.interleaved_nbytes(block_format, rows, columns)
    for shift in range(4):
        data = np.random.default_rng([rows, shift]).integers(0, 256, nbytes + shift, np.uint8)[shift:]
        out = np.full(packed + 128, 0xA5, np.uint8)
        packing(block_format, data, rows, columns, out[64 - shift:packed + 64 - shift])
        expected = kernel_order.interleave(block_format, data, rows, columns)
        assert expected == out[64 - shift:packed + 64 - shift].tobytes()
        out[64 - shift:packed + 64 - shift] = 0xA5
        assert (out == 0xA5).all()


@pytest.mark.parametrize(("rows", "source", "target", "columns"), [
    (16, -1, 0, 512), (16, 1, 0, 512), (17, 0, -1, 512), (16, 0, 1, 512), (0, 0, 16, 512)])
def test_sizes_that_do_not_fit(rows: int, source: int, target: int, columns: int, packing: Packing) -> None:
    """Rows and buffers that do not belong together are refused."""
    f16 = quants.FORMATS["F16"]
    with pytest.raises(EngineError, match="cannot be packed"):
        packing(f16, bytes(max(2 * rows * columns + source, 0)), rows, columns,
                bytearray(layout.interleaved_nbytes(f16, rows, columns) + target))
    with pytest.raises(EngineError, match="cannot be packed"):
        packing(f16, bytes(1024), 16, 32, bytes(1024))  # read-only


@pytest.mark.parametrize(("name", "merged"), [
    *((name, 1) for name in quants.FORMATS), *((name, 16) for name in ("F32", "F16", "BF16"))])
def test_moves_fill_a_record(name: str, merged: int) -> None:
    """The last move to each byte of a record leaves none out, and none leads out of a block or its record."""
    block, found, terms = moves(quants.FORMATS[name], merged)
    kinds, written = list(KINDS), np.zeros(16 * block, bool)
    for move in found:
        nbytes = {"terms": 64, "evens": 64}.get(kinds[move["KIND"]], 16 * move["COUNT"] * move["NBYTES"])
        assert move["FROM"] + move["COUNT"] * move["NBYTES"] <= block
        assert move["TO"] + nbytes <= 16 * block
        written[move["TO"]:move["TO"] + nbytes] = True
    assert written.all()
    assert all(0 <= term["SOURCE"] <= 16 * block - 64 and 0 <= term["TURN"] < 32 for term in terms)


def test_columns_that_no_kernel_takes(packing: Packing) -> None:
    """Such rows come in the order of the interpreter, too: it is the engine that refuses to multiply them."""
    f16, data, out = quants.FORMATS["F16"], np.arange(17 * 24, dtype=np.uint16).view(np.uint8), bytearray(32 * 48)
    packing(f16, data, 17, 24, out)
    assert kernel_order.interleave(f16, data, 17, 24) == out
    with pytest.raises(EngineError, match="24 F16 weights"):
        blocks(f16, 24)


def test_threads_follow_one_table() -> None:
    """Threads that need a table at the same time get the same one: what one of them follows, no other gives back."""
    threads = 4
    with switching.often(), ThreadPoolExecutor(threads) as pool:
        for _ in range(20):
            packing, together = Packing(kernels()), threading.Barrier(threads)

            def addresses(packing: Packing = packing, together: threading.Barrier = together) -> list[int]:
                together.wait(60)
                return [packing.table(block_format) for block_format in quants.FORMATS.values()]
            found = [future.result() for future in [pool.submit(addresses) for _ in range(threads)]]
            assert found == [found[0]] * threads
