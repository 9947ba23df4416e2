"""`appliance infer --cache FILE`: the second run takes what the first one put there; the answer is the same; nothing
that is altered, of another model or under another key is used."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from appliance.boot.oneshot import Answer, Ask, open_session
from appliance.errors import ModelKeyError, StateError
from tests.support import forked, pages_by_spec
from tests.support.engines import synthetic_model
from tests.support.environment import unmeasured
from tests.support.server import sha256, write_policy

TEXT = "the quick brown fox jumps over the lazy dog. " * 3
LIMITS = "prompt_tokens = 1500\n generation_tokens = 100"


def deploy(folder: Path, model: str = "Q8_0", more: str = "") -> Path:
    """A policy with one small model."""
    folder.mkdir(exist_ok=True)
    (folder / "tiny.gguf").write_bytes(synthetic_model(model))
    return write_policy(folder, {"tiny": folder / "tiny.gguf"}, limits=LIMITS, model=more, schema=2)


def run(policy: Path, cache: Path | None, text: str = TEXT, key: Path | None = None) -> Answer:
    """One prompt, as `infer` runs it."""
    with open_session(policy, threads=1) as session:
        if cache is not None:
            session.keep_in(cache, key)
        return session.run(Ask(text, raw=True, max_tokens=70, temperature=0.7, seed=1))


@pytest.mark.parametrize("kind", ["f16", "q8", "q4", "q8q4"])
def test_the_next_run_finds_it(kind: str, tmp_path: Path) -> None:
    """All whole pages of the prompt are found, those of the answer too by a prompt that goes on from it; the answers
    are those without a file. Both files are for their owner alone."""
    policy, cache = deploy(tmp_path / "a", more=f'kv_cache = "{kind}"'), tmp_path / "chat.cache"
    none, first, second = run(policy, None), run(policy, cache), run(policy, cache)
    length = len(none.prompt_tokens)
    assert (None, 0, (length - 1) // 64 * 64) == (none.cached_tokens, first.cached_tokens, second.cached_tokens)
    assert none.tokens == first.tokens == second.tokens
    longer = run(policy, cache, TEXT + "and so on")
    assert longer.tokens == run(policy, None, TEXT + "and so on").tokens
    assert (longer.cached_tokens or 0) > 0
    assert [0o600, 0o600] == [each.stat().st_mode & 0o777 for each in (cache, tmp_path / "chat.cache.key")]
    assert b"APG2" == cache.read_bytes()[4096:4100]


def test_the_specification_opens_it(tmp_path: Path) -> None:
    """A reader of the specification finds the prompt's tokens with the key, and none with another."""
    policy, cache = deploy(tmp_path / "a"), tmp_path / "chat.cache"
    answer, data = run(policy, cache), cache.read_bytes()
    key = bytes.fromhex((tmp_path / "chat.cache.key").read_text().strip())
    number = int.from_bytes(data[4104:4112], "little")
    secret = pages_by_spec.hkdf(key, data[12:44], pages_by_spec.D + b"run\n" + data[4104:4112])
    with open_session(policy, threads=1) as session:
        page = session._running.engine.page
    bound = pages_by_spec.binding("", 4096, sha256((tmp_path / "a" / "tiny.gguf").read_bytes()), page.arithmetic)
    found = list(pages_by_spec.records(data, {number: secret}, bound, page.halves))
    text = [*answer.prompt_tokens, *answer.tokens]
    wanted = [tuple(text[at:at + 64]) for at in range(0, (len(text) - 1) // 64 * 64, 64)]
    assert wanted == [each.tokens for each in found]
    assert all(each.keys and each.values for each in found)
    assert [] == list(pages_by_spec.records(data, {number: bytes(32)}, bound, page.halves))


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    """Another key, model or format, no key, another kind of file: each is refused, by name and with a way out. A torn
    or altered file is used as far as it authenticates."""
    policy, cache = deploy(tmp_path / "a"), tmp_path / "chat.cache"
    first = run(policy, cache)
    (tmp_path / "other.key").write_text("3c" * 32)
    (tmp_path / "other.key").chmod(0o600)
    for wrong, key in ((policy, tmp_path / "other.key"), (deploy(tmp_path / "b", "mixed"), None),
                       (deploy(tmp_path / "c", more='kv_cache = "q8"'), None)):
        with pytest.raises(StateError) as caught:
            run(wrong, cache, key=key)
        assert ("cache-foreign", True) == (caught.value.code, "delete" in (caught.value.hint or ""))
    with pytest.raises(ModelKeyError, match="its key"):
        run(policy, cache, key=tmp_path / "absent")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(StateError, match="not a cache file"):
        run(policy, tmp_path / "text", key=tmp_path / "other.key")
    good = cache.read_bytes()
    cache.write_bytes(good[:8] + b"\1" + good[9:])
    with pytest.raises(StateError, match="is a cache file of version 1, and version 2 is needed"):
        run(policy, cache)
    for data, least in ((good[:len(good) - 5000], 64), (good[:4096 + 700], 0), (good[:4096], 0)):
        cache.write_bytes(data)
        again = run(policy, cache)
        assert first.tokens == again.tokens
        assert least <= (again.cached_tokens or 0) < len(first.prompt_tokens)
    altered = bytearray(good)
    altered[4096 + 600] ^= 1
    cache.write_bytes(altered)
    again = run(policy, cache)
    assert (first.tokens, 0) == (again.tokens, again.cached_tokens)
    assert (len(first.prompt_tokens) - 1) // 64 * 64 == run(policy, cache).cached_tokens


def test_the_command_line(tmp_path: Path) -> None:
    """The verb says how many tokens it found; a key without a cache is refused."""
    policy, cache = deploy(tmp_path / "a"), tmp_path / "chat.cache"
    words = ["infer", str(policy), "--raw", "--prompt", TEXT, "--max-tokens", "2",
             "--seed", "1", "--threads", "1", "--json"]

    def told(*more: str) -> subprocess.CompletedProcess[str]:
        return forked.run([*words, *more], unmeasured())
    runs = [told("--cache", str(cache)) for _ in range(2)]
    assert [0, 0] == [each.returncode for each in runs], runs[0].stderr
    first, second = (json.loads(each.stdout) for each in runs)
    assert 0 == first["cached_tokens"] < second["cached_tokens"]
    assert first["tokens"] == second["tokens"]
    refused = told("--cache-key", str(tmp_path / "key"))
    assert 2 == refused.returncode
    assert "needs --cache" in refused.stderr
