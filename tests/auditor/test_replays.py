"""Answers of many circumstances are computed again, token for token: a sample of `python -m tests.support.replays`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from appliance.auditor import replay
from appliance.kernels.runtime import targets
from examples import plain_engine
from tests.support import arm64, extent, libraries, replays
from tests.support.engines import kernels, synthetic_model

EACH = 5
Sample = tuple[Path, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    """A model's file, and answers of all circumstances."""
    path, gguf = tmp_path_factory.mktemp("replays") / "model.gguf", synthetic_model(replays.MODEL)
    path.write_bytes(gguf)
    return path, [said for place, how in enumerate(replays.ALL)
                  for said in replays.answers(how, gguf, range(place * EACH, (place + 1) * EACH))]


def test_here(sample: Sample) -> None:
    """Whatever slots, streaming, pages, guesses and rows there were; and one that was altered is not."""
    path, openings = sample
    assert len(openings) == EACH * len(replays.ALL) == replays.count_again(kernels(), path, openings)
    assert 5 < sum(said["constraint"] is not None for said in openings) < 25
    for number in range(0, len(openings), 9):
        said = openings[number]
        place = len(said["tokens"]) // 2
        altered = {**said, "tokens": [*said["tokens"][:place], said["tokens"][place] ^ 1, *said["tokens"][place + 1:]]}
        assert 0 == replays.count_again(kernels(), path, [altered])


def test_by_the_numpy_twin(sample: Sample) -> None:
    """Two of each circumstances (in the soak, all), by the code that shares nothing with the engine."""
    path, openings = sample
    answer = path.with_name("answer.json")
    for kind in sorted({said["kv_cache"] for said in openings}):
        with replays.engine_in(replays.Circumstances(kv_cache=kind), path.read_bytes()) as engine:
            for said in extent.some(openings, 2 * len(replays.ALL)):
                if said["kv_cache"] != kind:
                    continue
                asked, chosen = replay.request(said)
                found = replay.check(engine, asked, chosen, said["constraint"])
                answer.write_text(json.dumps(replay.plain(said, found)))
                assert 0 == plain_engine.main([str(path), str(answer), "--cache", kind])


@pytest.mark.guests
@pytest.mark.parametrize("target", ["avx2", "portable"])
def test_by_another_target(sample: Sample, target: str) -> None:
    """Two of each circumstances (in the soak, all), in a process with the kernels of the other target."""
    if target == targets.detect().name or target not in [each.name for each in targets.known()]:
        pytest.skip(f"{target} is not another target of this CPU")
    path, openings = sample[0], extent.some(sample[1], 2 * len(replays.ALL))
    kept = path.with_name("openings.json")
    kept.write_text(json.dumps(openings))
    assert len(openings) == replays.elsewhere(target, libraries.library(target), path, kept)


@pytest.mark.guests
def test_by_neon_under_emulation(sample: Sample) -> None:
    """A few, on another architecture."""
    arm64.need()
    path, openings = sample
    kept = path.with_name("few.json")
    kept.write_text(json.dumps([said for said in openings if said["constraint"] is None][::36]))
    found = arm64.run("-m", "tests.support.replays", "--again", "neon", arm64.library(), path, kept)
    assert len(json.loads(kept.read_text())) == int(found)
