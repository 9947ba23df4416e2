"""What stays resident where not all fits: more with more memory, never more than there is."""

from __future__ import annotations

import ctypes
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from appliance.boot.planning import budget
from appliance.boot.planning.footprint import Share
from appliance.boot.planning.residency import choose, packed_nbytes, spread
from appliance.boot.running import load as models
from appliance.engine.engine import Engine, EngineOptions
from appliance.models.catalogue import Catalogue, ModelFile
from appliance.models.sources import hidden_rows
from appliance.models.sources.streamed import EMBEDDING, StreamedSource
from appliance.policy import load
from tests.support import server
from tests.support.engines import kernels, running, synthetic_model
from tests.support.ggufs import Tensor, build
from tests.support.logits import logits_of
from tests.support.plain import open_tagged

IDS = [1, 5, 9, 200, 17]


def test_more_memory_keeps_more(tmp_path: Path) -> None:
    """From nothing to everything in small steps: never above the room, and never by much less than a matrix below."""
    path = tmp_path / "m.gguf"
    path.write_bytes(synthetic_model("mixed"))
    with open_tagged(path, tile_size=8192) as plain:
        sizes = {each.info.name: packed_nbytes(each) for each in plain.tiling.segments
                 if each.info is not None and each.kind == "matrix"}
        whole, largest = sum(sizes.values()), max(sizes.values())
        for room in range(0, whole + 1, whole // 50):
            kept = sum(sizes[name] for name in choose(plain.tiling, room, hidden=False))
            assert min(room, whole) - largest < kept <= room
        assert {EMBEDDING} == choose(plain.tiling, 0)
        assert sizes.keys() == choose(plain.tiling, whole)


@pytest.mark.parametrize(("costs", "room", "expected"), [
    ([4] * 8, 16, "01010101"), ([4] * 8, 8, "00010001"), ([4] * 8, 24, "01110111"), ([4] * 4, 100, "1111"),
    ([10, 1, 1, 1], 3, "0111"), ([0, 5, 5], 0, "100"), ([], 5, ""), ([3, 5, 3], 5, "001")])
def test_what_is_kept_lies_evenly(costs: list[int], room: int, expected: str) -> None:
    """As much as fits, in equal distances where all are alike."""
    assert expected == "".join(str(int(chosen)) for chosen in spread(costs, room))


@pytest.mark.parametrize("groups", [1, 4, 5, 7, 50])
def test_hidden_embeddings_take_no_more_than_their_bytes(groups: int, tmp_path: Path) -> None:
    """However tiles and pieces fall, ciphertext takes its bytes and a tag for each 32 KiB at most, as is reckoned, and
    every row of it is found."""
    rows = 16 * groups - 3
    weights = np.arange(rows * 256, dtype=np.float32).reshape(rows, 256)
    path = tmp_path / "m.gguf"
    path.write_bytes(build([], [Tensor(EMBEDDING, 0, (256, rows), weights.tobytes())]))
    with closing(StreamedSource(open_tagged(path, tile_size=81920))) as source:
        assert source._embedding is not None
        whole = groups * 16 * 256 * 4
        assert whole < source._embedding.nbytes <= whole + 16 * -(-whole // 32768)
        assert source._embedding.nbytes == hidden_rows.nbytes(source.reader.segment(EMBEDDING))
        with source.passing():
            for index, address, row in source.rows(EMBEDDING, range(rows)):
                found = np.ctypeslib.as_array((ctypes.c_float * (256 * 16)).from_address(
                    address + row // 16 * 256 * 16 * 4)).reshape(256, 16)[:, row % 16]
                assert np.array_equal(weights[index], found)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 1.0])
def test_bits_do_not_depend_on_what_is_kept(share: float, tmp_path: Path) -> None:
    """A model of which a share is resident gives the same bits as a resident one, and keeps what it says."""
    with running("mixed") as engine:
        expected = logits_of(engine, IDS)
    path = tmp_path / "m.gguf"
    path.write_bytes(synthetic_model("mixed"))
    plain = open_tagged(path, tile_size=8192)
    room = int(share * path.stat().st_size * 1.1)
    source = StreamedSource(plain, resident=choose(plain.tiling, room, hidden=False), access="leaks")
    with closing(source), Engine.open(source, EngineOptions(threads=2, slots=1), kernels=kernels()) as engine:
        assert np.array_equal(expected, logits_of(engine, IDS))
        assert source.resident_nbytes <= room + 64 * len(source.tensors)


def test_auto_streams_what_does_not_fit(tmp_path: Path, tiny_model: Path) -> None:
    """Where all fits nothing is streamed; where it does not, the rest of the room is given to weights; where not even
    streaming helps, it is refused. A model that must be resident is given nothing less."""
    path = tmp_path / "m.gguf"
    path.write_bytes(synthetic_model("mixed"))
    files = {"tiny": path}
    found = []
    for how in ('"auto"', "false"):
        policy = load(server.write_policy(tmp_path, files, model=f"streaming_decrypt = {how}",
                                          limits='request_size = "64KiB"')).policy
        least = budget.divide(policy, Catalogue(files), 1)
        assert least.refusal is not None
        found.append((budget.divide(policy, Catalogue(files), 1 << 40).shares["tiny"].resident,
                      least.shares["tiny"].resident,
                      budget.divide(policy, Catalogue(files), least.nbytes).shares["tiny"].resident))
    assert [(None, 0, 0), (None, None, None)] == found


def test_an_automatic_model_runs(tmp_path: Path, tiny_model: Path) -> None:
    """With no room for all of it, a plain model that says "auto" is streamed and says how much is resident."""
    loaded = load(server.write_policy(tmp_path, {"tiny": tiny_model}, model='streaming_decrypt = "auto"'))
    [model] = loaded.policy.models
    for resident, said in ((None, "resident"), (1 << 30, "MiB of them resident"), (0, "streamed by ")):
        with closing(models.load(model, ModelFile(tiny_model), models.Loading(
            loaded.policy.limits, kernels=kernels(), threads=1, share=Share(2, 64, resident)))) as model_running:
            assert said in model_running.residency
            assert 0 == model_running.streamed_plaintext
