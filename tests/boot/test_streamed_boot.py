"""What a policy says about streaming, carried out: the same answers, budgets that hold, refusals that say why."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import openai
import pytest

from appliance.boot.oneshot import Ask, open_session
from appliance.boot.planning import budget, footprint
from appliance.boot.running import load as models
from appliance.errors import BootError, TamperedError
from appliance.keys import policy_keys as modelkeys
from appliance.models.catalogue import Catalogue, ModelFile
from appliance.models.sealed.reader import structure
from appliance.models.sources.streamed import StreamedSource
from appliance.policy import load
from appliance.sealing import sealing
from tests.support import server
from tests.support.engines import kernels
from tests.support.logits import logits_of
from tests.support.sealed_models import KEY

TILE_SIZE = 65536


@pytest.fixture
def sealed(tmp_path: Path, tiny_model: Path) -> Path:
    """A sealed tiny model; its key file lies beside it."""
    (tmp_path / "key").touch(0o600)
    (tmp_path / "key").write_text(KEY.hex())
    sealing.seal(tiny_model, tmp_path / "tiny.sealed", KEY, tile_size=TILE_SIZE)
    return tmp_path / "tiny.sealed"


def _policy(sealed: Path, plain: Path, lines: str, schema: int = 1) -> Path:
    header = hashlib.sha256(sealed.read_bytes()).hexdigest()
    key = f'key {{\n provider = "file"\n path = "{sealed.parent / "key"}"\n }}'
    pins = f'sealed_header_sha256 = "HEADER"\n{key}\n{lines}'
    written = server.write_policy(sealed.parent, {"tiny": sealed}, model=pins, schema=schema)
    text = written.read_text().replace(header, hashlib.sha256(plain.read_bytes()).hexdigest())
    written.write_text(text.replace("HEADER", structure(sealed)[0].digest.hex()))
    return written


@contextmanager
def _running(policy: Path, plaintext_budget: int | None = None) -> Iterator[models.RunningModel]:
    """The policy's model, loaded as a boot does it."""
    loaded = load(policy)
    [model] = loaded.policy.models
    running = models.load(model, ModelFile(policy.parent / model.file), models.Loading(
        loaded.policy.limits, key=modelkeys.release([model]).get(model.name), kernels=kernels(), threads=2,
        plaintext_budget=plaintext_budget))
    with closing(running):
        yield running


@pytest.mark.parametrize("pattern", ["hidden", "oblivious", "leaks"])
def test_the_same_answer_within_the_budget(pattern: str, sealed: Path, tiny_model: Path) -> None:
    """A streamed model answers as a resident one, says how it is kept, and attests the same digests."""
    ask = Ask("▁aa▁ba▁ca", raw=True, max_tokens=8, temperature=0, seed=1)
    with open_session(_policy(sealed, tiny_model, "streaming_decrypt = false"), threads=1) as session:
        expected = session.run(ask).tokens
        assert "resident" == session._running.residency
        bound = session._running.bound()
    policy = _policy(sealed, tiny_model, f'streaming_decrypt = true\naccess_pattern = "{pattern}"', 2)
    with open_session(policy, threads=2) as session:
        assert expected == session.run(ask).tokens
        assert bound == session._running.bound()
        source = session._running.source
        assert isinstance(source, StreamedSource)
        assert 0 < source.most_alive <= source.alive_limit < source.plaintext_nbytes <= 8 << 20
        assert ", at most 0." in session._running.residency


def test_a_budget_that_is_too_small(sealed: Path, tiny_model: Path) -> None:
    """The refusal names threads, bytes and what the policy leaves."""
    policy = _policy(sealed, tiny_model, "streaming_decrypt = true")
    with pytest.raises(BootError, match=r"2 threads hold .* tee\.plaintext_budget leaves 1000") as caught, \
            _running(policy, 1000):
        pass
    assert "plaintext-budget" == caught.value.code


def test_a_budget_for_one_tile_a_thread(sealed: Path, tiny_model: Path) -> None:
    """Where two tiles for each thread would be too much plaintext, there is one, and the answer is the same."""
    policy, found = _policy(sealed, tiny_model, "streaming_decrypt = true"), []
    with _running(policy, 1 << 30) as wide:
        assert isinstance(wide.source, StreamedSource)
        tiles = sum(len(tile) for worker in wide.source.workers for tile in worker.tiles)
        most = wide.source.plaintext_nbytes - wide.source.alive_limit + tiles
    for budget_nbytes in (1 << 30, most - tiles // 4):
        with _running(policy, budget_nbytes) as running:
            assert isinstance(running.source, StreamedSource)
            found.append((running.source.alive_limit, logits_of(running.engine, [1, 5, 9]).tobytes()))
            # Compiled code uses one place anyway on CPUs with AMX.
            compiled = running.source.reader.fetched_by.startswith("libcrypto")
            narrow = len(found) > 1 or (compiled and kernels().target.amx)
            assert found[-1][0] == (tiles // 2 if narrow else tiles)
            assert running.source.most_alive <= running.source.alive_limit
            running.source.prepare(3)  # a thread that comes later keeps to it, too
            assert 3 * found[-1][0] == 2 * running.source.alive_limit
    assert 1 == len({logits for _, logits in found})


def test_a_plain_model_is_not_streamed_by_demand(tmp_path: Path, tiny_model: Path) -> None:
    """A file that lies in the clear on the disk cannot keep what `streaming_decrypt = true` says."""
    policy = server.write_policy(tmp_path, {"tiny": tiny_model}, model="streaming_decrypt = true")
    (tmp_path / tiny_model.name).write_bytes(tiny_model.read_bytes())
    with pytest.raises(BootError, match="not sealed"), _running(policy):
        pass


def test_memory_of_a_streamed_model(sealed: Path, tiny_model: Path) -> None:
    """The check before the boot counts encrypted embeddings in place of all weights."""
    needs = []
    for how in ("true", "false"):
        loaded = load(_policy(sealed, tiny_model, f"streaming_decrypt = {how}"))
        [model] = loaded.policy.models
        lines = budget.divide(loaded.policy, Catalogue({model.name: sealed}), 1 << 40).lines
        needs.append(sum(line.nbytes for line in lines if "resident weights" in line.what or "embeddings" in line.what))
    assert 0 < needs[0] < needs[1] <= sealed.stat().st_size


def test_an_altered_file(sealed: Path, tiny_model: Path) -> None:
    """What changes on the disk after the boot is an error of the next answer where the disk is asked again; where there
    was memory for the records, it is not."""
    policy = _policy(sealed, tiny_model, "streaming_decrypt = true")
    with open_session(policy, threads=1) as session, _running(policy) as running:
        ask = Ask("▁aa▁ba▁ca", raw=True, max_tokens=4, temperature=0, seed=1)
        expected = session.run(ask).tokens
        assert "kept encrypted" in session._running.residency
        logits_of(running.engine, [1, 2])
        body = sealed.read_bytes()
        with sealed.open("r+b") as file:
            file.write(bytes(byte ^ 1 for byte in body))
        assert expected == session.run(ask).tokens
        with pytest.raises(TamperedError, match="does not authenticate"):
            logits_of(running.engine, [1, 2])


def test_a_boot_reckons_with_no_header_but_the_pinned(sealed: Path, tiny_model: Path) -> None:
    """A sealed file with another header than the policy pins is not parsed for the sum: the pins are what is told."""
    policy = load(_policy(sealed, tiny_model, "")).policy
    with sealed.open("r+b") as file:
        file.seek(144)
        file.write(b"GARBAGE!")
    found = footprint.read(policy.models[0], policy, Catalogue({"tiny": sealed}))
    assert (None, True) == (found.tiles, "; the policy pins " in (found.fault or ""))


def _short_of_memory(sealed: Path, plain: Path) -> Path:
    """A policy for the streamed model, whose records find no place in memory, beside a plain one."""
    (sealed.parent / "other.gguf").write_bytes(plain.read_bytes())
    written = _policy(sealed, plain, "streaming_decrypt = true")
    other = server.MODEL.format(name="other", file="other.gguf", more="",
                                sha256=hashlib.sha256(plain.read_bytes()).hexdigest())
    text = written.read_text().replace('["tiny"]', '["tiny", "other"]') + other
    written.write_text(text)
    files = {"tiny": sealed, "other": sealed.parent / "other.gguf"}
    least = budget.divide(load(written).policy, Catalogue(files), 1, compiles=kernels().origin != "ahead").nbytes
    written.write_text(text.replace("tee {", f'tee {{\n memory_budget = "{(least >> 20) + 8}MiB"\n').replace(
        '["simulated"] }', '["simulated"]\n}'))
    return written


def _of_process(running: server.Server, file: str, field: str) -> int:
    text = Path(f"/proc/{running.process.pid}/{file}").read_text()
    [found] = [line.removeprefix(field).split()[0] for line in text.splitlines() if line.startswith(field)]
    return int(found)


def test_a_service_may_take_what_its_budget_leaves(sealed: Path, tiny_model: Path) -> None:
    """Once it listens, the kernel allows a service no more than the sum has for requests, and what was given to nobody.
    All of its threads run by then: it answers with them, and ends as it should."""
    path = _short_of_memory(sealed, tiny_model)
    policy = load(path).policy
    limit = policy.tee.memory_budget_bytes
    assert limit is not None
    sums = budget.divide(policy, Catalogue({"tiny": sealed, "other": sealed.parent / "other.gguf"}), limit,
                         compiles=kernels().origin != "ahead")
    taken = sum(line.nbytes for line in sums.lines if not line.what.startswith(
        ("connections", "requests", "answers", "loading")))
    running = server.Server(path, [sealed], fresh=True).wait_ready()
    try:
        there = _of_process(running, "limits", "Max data size") - 1024 * _of_process(running, "status", "VmData:")
        assert there <= limit - taken
        threads = _of_process(running, "status", "Threads:")
        with running.http() as http:
            for model in ("tiny", "other"):
                for prompt in ("▁aa▁ba", "▁aa" * 40):
                    assert 200 == http.post("/v1/completions", json={
                        "model": model, "prompt": prompt, "max_tokens": 4}).status_code
            assert 200 == http.get("/v1/attestation", params={"nonce": "00" * 32}).status_code
        assert threads == _of_process(running, "status", "Threads:")
    finally:
        assert 0 == running.stop()


@pytest.mark.parametrize("how", ["altered", "cut"])
def test_a_service_tells_of_an_altered_file(how: str, sealed: Path, tiny_model: Path) -> None:
    """Callers, the audit log and /health learn that a model's file was altered; other models answer on."""
    running = server.Server(_short_of_memory(sealed, tiny_model), [sealed]).wait_ready()
    try:
        with running.http() as http:
            def ask(model: str) -> httpx.Response:
                return http.post("/v1/completions", json={"model": model, "prompt": "▁aa▁ba", "max_tokens": 4,
                                                          "temperature": 0})

            def failures() -> dict[str, str | None]:
                return {model["name"]: model["failure"] for model in http.get("/health").json()["models"]}

            right = ask("other").json()["choices"][0]["text"]
            assert (200, right) == (ask("tiny").status_code, ask("tiny").json()["choices"][0]["text"])
            assert {"tiny": None, "other": None} == failures()
            if how == "cut":
                os.truncate(sealed, sealed.stat().st_size // 2)
            else:
                sealed.write_bytes(bytes(byte ^ 1 for byte in sealed.read_bytes()))
            for _ in range(2):
                refused = ask("tiny")
                assert (500, "model_tampered") == (refused.status_code, refused.json()["error"]["code"])
            assert running.audited(refused.headers["x-request-id"])["code"] == "model_tampered"
            assert {"tiny": "model-tampered", "other": None} == failures()
            assert [("tiny", "model_tampered")] == [
                (record["model"], record["code"]) for record in running.audit("model.failed")]
            assert right == ask("other").json()["choices"][0]["text"]
    finally:
        assert 0 == running.stop()


def test_a_file_is_altered_while_an_answer_streams(sealed: Path, tiny_model: Path) -> None:
    """The caller has right tokens up to there, then the error: nothing says that the answer is whole."""
    running, body = server.Server(_short_of_memory(sealed, tiny_model), [sealed]).wait_ready(), sealed.read_bytes()

    def answer(file: bytes) -> tuple[str, list[str], str | None]:
        """The text, why it ended, and the error's code; the file is written once there is a piece of text."""
        text = ""
        reasons: list[str] = []
        try:
            for piece in running.client().completions.create(model="tiny", prompt="▁aa▁ba", max_tokens=200,
                                                             temperature=0, stream=True):
                if not text:
                    with sealed.open("r+b") as there:  # which does not cut it first
                        there.write(file)
                [choice] = piece.choices
                text += choice.text
                reasons += [str(choice.finish_reason)] * bool(choice.finish_reason)
        except openai.APIError as error:
            return text, reasons, error.code
        return text, reasons, None

    try:
        whole = part = answer(body)
        assert (["length"], None) == whole[1:]
        while whole == part:  # an answer may be ready before its first piece is read
            part = answer(bytes(byte ^ 1 for byte in body))
        assert ([], "model_tampered") == part[1:]
        assert 0 < len(part[0]) < len(whole[0])
        assert whole[0].startswith(part[0])
    finally:
        assert 0 == running.stop()
    assert ["model_tampered"] == [record["code"] for record in running.audit("request.refused")]
