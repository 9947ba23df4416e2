"""Answers of models with states are computed again by the numpy twin, token for token: from several slots, after texts
that were kept in memory, with weights that are streamed, and after a restart."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from appliance.auditor import replay
from appliance.engine.scheduler import Scheduler
from examples import plain_engine
from tests.support import family_models, replays, shelves
from tests.support.extent import WHOLE
from tests.support.replays import Circumstances

ANSWERS = 20


def _restored(gguf: bytes, folder: Path, numbers: Sequence[int]) -> list[dict[str, Any]]:
    """Answers of a process of which each began with a page, and a state, that an earlier one left on the disk."""
    disk, found, how = shelves.blank(folder, 32 << 20), list[dict[str, Any]](), Circumstances(slots=2, prefixes=True)
    for life, tried in enumerate((range(5), numbers)):
        with replays.engine_in(how, gguf) as engine:
            opened = shelves.start(disk, engine.page)
            scheduler = Scheduler(engine, tenants=["a"], prefix_lifetime=60.0, shelf=opened.shelf)
            for number in tried:
                asked, tokens = replays.request(engine, number), list[int]()
                handle = scheduler.submit(asked, "a", lambda advance, tokens=tokens: tokens.extend(
                    [] if advance.token is None else [advance.token]))
                assert handle.wait(60)
                assert 64 * life == handle.cached_tokens
                found += [replays.opening(asked, tokens, how, frozenset(engine.tokenizer.eot_ids))] * life
            scheduler.close()
            opened.close()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lfm2", "qwen35", "granitehybrid"])
def test_the_twin_replays_them(name: str, tmp_path: Path) -> None:
    """Answers of each family from batches, from tiles and from a state on a disk, in the soak twenty; one that was
    altered is not replayed."""
    gguf, path, answer = family_models.model(name), tmp_path / "model.gguf", tmp_path / "answer.json"
    path.write_bytes(gguf)
    batch, tiles, restored = ((range(7), range(7, 14), range(14, ANSWERS)) if WHOLE else
                              (range(6), (7, 8, 12), (14, 15, 19)))  # 5 begins as 0 does, and 12 as 7
    openings = [*replays.answers(Circumstances(slots=4, prefixes=True), gguf, batch),
                *replays.answers(Circumstances(slots=2, streamed=True, prefixes=True), gguf, tiles),
                *_restored(gguf, tmp_path, restored)]
    assert len(openings) == (ANSWERS if WHOLE else 12)
    with replays.engine_in(Circumstances(), gguf) as engine:
        for said in openings:
            asked, chosen = replay.request(said)
            answer.write_text(json.dumps(replay.plain(said, replay.check(engine, asked, chosen, said["constraint"]))))
            assert 0 == plain_engine.main([str(path), str(answer), "--cache", "f16"])
        told = json.loads(answer.read_text())
    token = next(key for key, value in told.items() if key == "tokens" and value)
    told[token][0] ^= 1
    answer.write_text(json.dumps(told))
    assert 0 != plain_engine.main([str(path), str(answer), "--cache", "f16"])
