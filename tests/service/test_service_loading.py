"""Models that come and go while the service runs: over HTTP, with evidence, receipts, and a look into its memory."""

from __future__ import annotations

import base64
import concurrent.futures
import contextlib
import json
import os
import re
import secrets
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from appliance.attestation.case.reading import parse_statement
from appliance.boot.checks import find_models
from appliance.boot.planning import budget
from appliance.boot.running.declared import ModelLoader
from appliance.cli.main import main
from appliance.errors import BootError
from appliance.models.catalogue import Catalogue
from appliance.models.file import gguf
from appliance.policy import load
from appliance.receipts.statement import Receipt
from appliance.sealing import sealing
from tests.support import memory, synthetic, waiting
from tests.support.engines import kernels
from tests.support.require import absent
from tests.support.sealed_models import KEY as KEY_OF_MODEL
from tests.support.server import AUDITOR_KEY, KEY, OTHER_KEY, Server, write_policy

ADMIN, PATH = OTHER_KEY, "/v1/admin/models"
LOADS = {"stays": "always", "first": "boot", "later": "demand", "spare": "demand"}
VARIANTS = {"stays": "Q8_0", "first": "Q4_K", "later": "Q6_K", "spare": "Q5_K"}
BOTH = """listen "attested" {
    kind = "ra-tls"
    port = 8443
  }
  listen "plain" {
    kind = "tcp"
    port = 8080
  }"""
NORM = 4 * synthetic.DIM  # bytes of a vector
LONG = 600  # tokens of an answer under which models are swapped


def _policy(folder: Path, *, loads: dict[str, str] = LOADS, tee: str = "", **more: Any) -> tuple[Path, dict[str, Path]]:
    models = {}
    for name in loads:
        models[name] = folder / f"{name}.gguf"
        models[name].write_bytes(_with_own_norms(synthetic.model(synthetic.VARIANTS[VARIANTS[name]], 2048)))
    path = write_policy(folder, models, schema=2, **more)
    text = path.read_text().replace('tee { platforms = ["simulated"] }', f'tee {{ platforms = ["simulated"]\n{tee} }}')
    for name, when in loads.items():
        text = text.replace(f'file   = "{name}.gguf"', f'file   = "{name}.gguf"\n  load   = "{when}"\n'
                            '  prefix_cache {\n    size = "1MiB"\n  }')
    path.write_text(text)
    return path, models


def _with_own_norms(data: bytes) -> bytes:
    """A model whose last vector stands in no other file."""
    place = _last_norm(data)
    return data[:place] + np.random.default_rng().uniform(0.9, 1.1, NORM // 4).astype("<f4").tobytes() + data[
        place + NORM:]


def _last_norm(data: bytes) -> int:
    return gguf.parse(data).tensors["output_norm.weight"].offset


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with two models loaded of four, outside of measured coverage, so that it is in its sandbox."""
    path, models = _policy(tmp_path_factory.mktemp("loading"), audit="receipts = true",
                           limits="generation_tokens = 1500\n  concurrent_requests = 16")
    server = Server(path, list(models.values()), measured=False).wait_ready()
    yield server
    assert 0 == server.stop()


def _change(server: Server, **names: str) -> httpx.Response:
    with server.http(ADMIN) as http:
        return http.post(PATH, json=names)


def _states(server: Server) -> dict[str, str]:
    with server.http(ADMIN) as http:
        return {each["id"]: each["state"] for each in http.get(PATH).json()["data"]}


def _settled(server: Server, **states: str) -> None:
    """Wait until models are in these states."""
    waiting.until(lambda: all(_states(server)[name] == state for name, state in states.items()), f"models in {states}",
                  lambda: waiting.processor_time(server.process.pid))


def _put(server: Server, *loaded: str) -> None:
    """Have just these models that may come and go loaded."""
    for name in ("first", "later", "spare"):
        waiting.until(lambda name=name: _states(server)[name] in ("loaded", "unloaded"), f"an end of {name}'s change",
                      lambda: waiting.processor_time(server.process.pid))
        if (_states(server)[name] == "loaded") != (name in loaded):
            assert 200 == _change(server, **{"load" if name in loaded else "unload": name}).status_code
        _settled(server, **{name: "loaded" if name in loaded else "unloaded"})


def _answer(server: Server, model: str, seed: int, tokens: int = 32, began: threading.Event | None = None) -> str:
    """A stream's text; `began` is set once its first event is there."""
    said = ""
    with server.http() as http, http.stream("POST", "/v1/completions", json={
            "model": model, "prompt": "once", "max_tokens": tokens, "temperature": 1.0, "seed": seed, "stream": True,
            "logit_bias": {"2": -100}}) as answer:
        assert 200 == answer.status_code
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                said += "".join(each["text"] for each in json.loads(line[6:]).get("choices", []))
                if began is not None:
                    began.set()
        assert "data: [DONE]" == line or "" == line
    return said


@contextlib.contextmanager
def _streams(server: Server, model: str, count: int) -> Iterator[list[concurrent.futures.Future[str]]]:
    """So many long answers at once, each of which has begun."""
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        began = [threading.Event() for _ in range(count)]
        found = [pool.submit(_answer, server, model, seed, LONG, event) for seed, event in enumerate(began)]
        waiting.until(lambda: all(event.is_set() for event in began), f"{count} answers that have begun",
                      lambda: waiting.processor_time(server.process.pid))
        yield found


def _evidence(server: Server, path: Path) -> tuple[int, list[str]]:
    """The generation and the models in evidence that our verifier accepts, as of a simulated platform: exit code 5.
    """
    with server.http(None) as http:
        digest = http.get("/health").json()["self_test_sha384"]
    assert 5 == main(["verify", server.url, "--policy", str(server.policy), "--save", str(path), "--self-test", digest])
    statement = parse_statement(json.loads(path.read_text())["statement"])
    return statement.generation, [model.name for model in statement.models]


@pytest.mark.slow
def test_a_swap_under_eight_streams(served: Server, tmp_path: Path) -> None:
    """Answers that run end on the model that they began with, byte for byte; evidence before and after names the
    generation and its models; new requests find the new model, and none the old one."""
    _put(served, "first")
    with _streams(served, "first", 8) as running:
        plain = [each.result() for each in running]
    before, names = _evidence(served, tmp_path / "before.json")
    assert ["first", "stays"] == names
    with _streams(served, "first", 8) as running:
        told = _change(served, load="later", unload="first")
        assert 200 == told.status_code, told.text
        assert "unloading" == _states(served)["first"]
        after, names = _evidence(served, tmp_path / "after.json")
        assert (["later", "stays"], before + 1, told.json()["generation"]) == (names, after, after)
        refused = _asked(served, "first")
        assert (404, "model_not_loaded") == (refused.status_code, refused.json()["error"]["code"])
        assert "loaded: later, stays" in refused.json()["error"]["message"]
        again = _change(served, load="first")
        assert (409, "model_in_use") == (again.status_code, again.json()["error"]["code"])
        assert _answer(served, "later", 1)
        assert _answer(served, "stays", 1)
        assert plain == [each.result() for each in running]
    _settled(served, first="unloaded", later="loaded")
    assert [after] == [each["generation"] for each in served.audit("model.unloaded")][-1:]
    assert "first" == served.audit("model.wiped")[-1]["model"]
    asked = {"tenant": "other", "request": told.headers["x-request-id"]}
    for event in ("model.loaded", "model.unloaded", "model.wiped"):
        assert asked == {name: served.audit(event)[-1][name] for name in asked}
    with served.http() as http:
        assert ["later", "stays"] == sorted(each["id"] for each in http.get("/v1/models").json()["data"])
    with served.http(AUDITOR_KEY) as http:
        text = http.get("/metrics").text
    assert 'appliance_cache_slots{model="later"}' in text
    assert 'appliance_cache_slots{model="first"}' not in text
    assert 200 == _change(served, load="first", unload="later").status_code
    _settled(served, later="unloaded")
    assert plain[:2] == [_answer(served, "first", seed, LONG) for seed in range(2)]


def _asked(server: Server, model: str, key: str = KEY) -> httpx.Response:
    with server.http(key) as http:
        return http.post("/v1/completions", json={"model": model, "prompt": "once", "max_tokens": 1})


def test_receipts_name_the_generation_that_let_the_request_in(served: Server) -> None:
    """And the model that answered."""
    _put(served, "first")

    def receipt(model: str) -> Receipt:
        with served.http() as http:
            made = http.post("/v1/completions", headers={"appliance-receipt": "1"}, json={
                "model": model, "prompt": "once", "max_tokens": 4}).json()["receipt"]
        payload = made["envelope"]["payload"]
        return Receipt.model_validate_json(base64.b64decode(payload))

    one = receipt("first")
    generation = _change(served, load="later", unload="first").json()["generation"]
    two = receipt("later")
    assert ("first", "later", generation, generation - 1) == (
        one.model.name, two.model.name, two.generation, one.generation)
    assert one.model.sha256 != two.model.sha256


@pytest.mark.parametrize(("key", "body", "status", "code", "words"), [
    (KEY, {"load": "later"}, 403, "permission_denied", ""),
    (AUDITOR_KEY, {"load": "later"}, 403, "permission_denied", ""),
    (None, {"load": "later"}, 401, "invalid_api_key", ""),
    (ADMIN, {"load": "nobody"}, 400, "invalid_value", "first, later, spare"),
    (ADMIN, {"unload": "stays"}, 400, "invalid_value", "first, later, spare"),
    (ADMIN, {"load": "first"}, 409, "model_in_use", "is loaded"),
    (ADMIN, {"unload": "later"}, 409, "model_in_use", "is unloaded"),
    (ADMIN, {"load": "later", "unload": "later"}, 400, "invalid_value", "the same model"),
    (ADMIN, {}, 400, "missing_required_parameter", ""),
    (ADMIN, {"load": 5}, 400, "invalid_value", "load"),
    (ADMIN, {"lode": "later"}, 400, "unknown_parameter", "load and unload"),
    (ADMIN, ["later"], 400, "invalid_value", "the body"),
])
def test_what_is_refused(served: Server, key: str | None, body: Any, status: int, code: str, words: str) -> None:
    """Names what is allowed; nothing has changed then."""
    _put(served, "first")
    before = _states(served)
    with served.http(key) as http:
        answer = http.post(PATH, json=body)
    assert (status, code) == (answer.status_code, answer.json()["error"]["code"]), answer.text
    assert words in answer.json()["error"]["message"]
    assert before == _states(served)


def test_unloaded_weights_and_texts_are_wiped(served: Server) -> None:
    """Neither a weight nor a prompt's word that the prefix cache kept is in the process's memory."""
    if os.geteuid() != 0:
        absent("root: only it may read the memory of a process that is not dumpable")
    _put(served, "later")
    data = (served.folder / "later.gguf").read_bytes()
    word = data[(start := _last_norm(data)):start + 64]
    _answer(served, "later", 3)
    assert memory.count(served.process.pid, word)
    assert 200 == _change(served, unload="later").status_code
    _settled(served, later="unloaded")
    assert 0 == memory.count(served.process.pid, word)


def test_a_corrupted_file_changes_nothing(served: Server) -> None:
    """What was loaded answers on; the right file is loaded later."""
    _put(served, "first")
    file, before = served.folder / "spare.gguf", _states(served)
    right, said = file.read_bytes(), _answer(served, "first", 5)
    file.write_bytes(right[:-40] + secrets.token_bytes(40))
    answer = _change(served, load="spare", unload="first")
    assert (500, "model_load_failed") == (answer.status_code, answer.json()["error"]["code"])
    assert (before, said) == (_states(served), _answer(served, "first", 5))
    record = served.audit("model.refused")[-1]
    assert ("spare", "other", answer.headers["x-request-id"]) == (record["model"], record["tenant"], record["request"])
    file.write_bytes(right)
    assert 200 == _change(served, load="spare").status_code
    assert _answer(served, "spare", 1)
    assert 200 == _change(served, unload="spare").status_code


def test_two_changes_at_once(served: Server) -> None:
    """Each model is loaded once at most; whoever else asks is refused."""
    _put(served, "first")
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        names = ["later", "spare"] * 3
        found = list(zip(names, pool.map(lambda name: _change(served, load=name), names), strict=True))
    done = [name for name, each in found if each.status_code == 200]
    refused = [(each.status_code, each.json()["error"]["code"]) for _, each in found if each.status_code != 200]
    assert 1 <= len(done) == len(set(done)) == 6 - len(refused)
    assert {(409, "models_changing"), (409, "model_in_use")} >= set(refused)
    assert {"first", "stays", *done} == {name for name, state in _states(served).items() if state == "loaded"}


def test_a_client_that_leaves_does_not_stop_a_change(served: Server) -> None:
    """It is carried out."""
    _put(served, "first")
    host, port = served.url.removeprefix("http://").split(":")
    body = json.dumps({"load": "later", "unload": "first"}).encode()
    with socket.create_connection((host, int(port))) as client:
        client.sendall(f"POST {PATH} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ADMIN}\r\n"
                       f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
    _settled(served, first="unloaded", later="loaded")


def test_the_command_line(served: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str],
                          monkeypatch: pytest.MonkeyPatch) -> None:
    """It verifies the appliance, then shows the key; what the appliance refuses ends with 1."""
    _put(served, "first")
    key = tmp_path / "key"
    key.write_text(ADMIN + "\n")
    words = [served.url, "--policy", str(served.policy), "--accept", "simulated"]
    assert 0 == main(["models", "swap", *words[:1], "first", "later", *words[1:], "--api-key-file", str(key)])
    assert "later" in capsys.readouterr().out
    _settled(served, first="unloaded")
    monkeypatch.setenv("APPLIANCE_API_KEY", ADMIN)
    assert 0 == main(["models", "list", *words, "--json"])
    told = json.loads(capsys.readouterr().out)
    assert {"stays": "loaded", "first": "unloaded", "later": "loaded", "spare": "unloaded"} == {
        each["id"]: each["state"] for each in told["data"]}
    assert 1 == main(["models", "load", *words[:1], "later", *words[1:]])
    assert "error[model_in_use]: load: the model later is loaded" in capsys.readouterr().err
    assert 5 == main(["models", "unload", *words[:1], "later", *words[1:3], "--json"])
    assert 5 == json.loads(capsys.readouterr().out)["exit_code"]
    monkeypatch.setenv("APPLIANCE_API_KEY", KEY)
    assert 1 == main(["models", "unload", *words[:1], "later", *words[1:], "--json"])
    assert "permission_denied" == json.loads(capsys.readouterr().out)["code"]
    assert 5 == main(["models", "list", *words[:3]])
    assert "for tests and development: --accept simulated" in capsys.readouterr().err
    monkeypatch.delenv("APPLIANCE_API_KEY")
    assert 2 == main(["models", "list", *words])
    assert "APPLIANCE_API_KEY" in capsys.readouterr().err


def test_new_connections_have_evidence_of_the_new_generation(tmp_path: Path,
                                                             capsys: pytest.CaptureFixture[str]) -> None:
    """The certificate of an RA-TLS listener, and what is asked on it; the key is another one."""
    path, models = _policy(tmp_path, loads={"stays": "always", "later": "demand"}, listeners=BOTH)
    server = Server(path, list(models.values())).wait_ready()
    attested = next(str(url) for url in server.ready["listening"] if str(url).startswith("https"))
    server.ready["listening"] = [url for url in server.ready["listening"] if url != attested]
    try:
        def verified() -> dict[str, Any]:
            saved = tmp_path / "evidence.json"
            assert 5 == main(["verify", attested, "--policy", str(path), "--save", str(saved), "--json"])
            outcomes = {each["rule"]: each["outcome"] for each in json.loads(capsys.readouterr().out)["findings"]}
            assert ("holds", "holds") == (outcomes["tls-key"], outcomes["models"])
            found: dict[str, Any] = json.loads(saved.read_text())["statement"]
            return found
        before = verified()
        told = _change(server, load="later").json()
        after = verified()
        assert ["later", "stays"] == [model["name"] for model in after["models"]]
        assert before["generation"] < after["generation"] == told["generation"]
        assert before["tls_spki_sha256"] != after["tls_spki_sha256"]
    finally:
        assert 0 == server.stop()


def test_what_does_not_fit_is_refused_with_the_sum(tmp_path: Path) -> None:
    """And fits once another model has gone."""
    path, models = _policy(tmp_path, loads={"spare": "boot", "first": "demand"}, limits="concurrent_requests = 2")
    need = _least(path)
    path.write_text(path.read_text().replace('["simulated"]\n', f'["simulated"]\n  memory_budget = "{need}MiB"\n', 1))
    server = Server(path, list(models.values())).wait_ready()
    try:
        answer = _change(server, load="first")
        message = answer.json()["error"]["message"]
        assert (409, "model_in_use") == (answer.status_code, answer.json()["error"]["code"])
        assert "MiB are needed, there are" in message
        assert "first" in message
        assert "spare" in message
        assert 200 == _change(server, unload="spare").status_code
        _settled(server, spare="unloaded")
        assert 200 == _change(server, load="first").status_code
        assert _answer(server, "first", 1)
    finally:
        assert 0 == server.stop()


def _least(path: Path) -> int:
    """MiB with which the policy boots, and hardly more."""
    policy = load(path).policy
    catalogue = Catalogue(find_models(policy, [path.parent]))
    return next(size for size in range(64, 4096)
                if budget.divide(policy, catalogue, size << 20, compiles=False).refusal is None)


def test_the_service_ends_while_a_model_is_loaded(tmp_path: Path) -> None:
    """At once, with its own exit code."""
    path, models = _policy(tmp_path, loads={"stays": "always", "later": "demand"})
    server = Server(path, list(models.values())).wait_ready()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(_change, server, load="later")
        assert 0 == server.stop()
        with contextlib.suppress(httpx.TransportError):
            assert asked.result().status_code in (200, 503)


def test_one_long_answer_does_not_hold_a_model(tmp_path: Path) -> None:
    """Answers of a model that is unloaded have the time to drain. Then a stream ends with an error, a whole answer is
    refused, one that waits for its turn is, and a client that does not read is not waited for: the model is wiped."""
    path, models = _policy(tmp_path, loads={"stays": "always", "first": "boot"}, service='drain_timeout = "1s"',
                           limits="generation_tokens = 3500\n  concurrent_requests = 3")
    server = Server(path, list(models.values())).wait_ready()
    body = {"model": "first", "prompt": "once", "max_tokens": 3500, "logit_bias": {"2": -100}, "n": 2}

    def whole() -> httpx.Response:
        with server.http() as http:
            return http.post("/v1/completions", json=body)

    def streamed() -> list[dict[str, Any]]:
        with server.http() as http, http.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
            return [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {")]

    try:
        with concurrent.futures.ThreadPoolExecutor(4) as pool, server.http() as deaf, deaf.stream(
                "POST", "/v1/completions", json={**body, "stream": True}):
            refused, cut = [pool.submit(whole) for _ in range(3)], pool.submit(streamed)
            waiting.until(lambda: _admitted(server) >= 5, "all requests", lambda: _admitted(server))
            assert 200 == _change(server, unload="first").status_code
            assert 200 == httpx.post(f"{server.url}/v1/completions", timeout=60, headers={
                "authorization": f"Bearer {KEY}"}, json={**body, "model": "stays", "max_tokens": 5}).status_code
            _settled(server, first="unloaded")
            for each in refused:
                assert (404, "model_not_loaded") == (each.result().status_code, each.result().json()["error"]["code"])
            assert "model_not_loaded" == cut.result()[-1]["error"]["code"]
        assert 200 == _change(server, load="first").status_code
        assert _answer(server, "first", 1)
    finally:
        assert 0 == server.stop()


def _admitted(server: Server) -> int:
    """Requests of the model that is to leave, of those that run and those that wait."""
    with server.http(ADMIN) as http:
        text = http.get("/metrics").text
    return sum(int(float(line.rpartition(" ")[2])) for line in text.splitlines()
               if re.match(r'appliance_(requests_waiting|cache_slots_used)\{.*model="first"', line))


def test_the_service_ends_while_a_model_leaves(tmp_path: Path) -> None:
    """Its answers are cut when the time to drain is over, and it is wiped with all others."""
    path, models = _policy(tmp_path, loads={"stays": "always", "first": "boot"}, limits="generation_tokens = 1500",
                           service='drain_timeout = "1s"')
    server = Server(path, list(models.values())).wait_ready()
    with _streams(server, "first", 2) as running:
        assert 200 == _change(server, unload="first").status_code
        assert 0 == server.stop()
        for each in running:
            with contextlib.suppress(httpx.TransportError, AssertionError, ValueError):
                each.result()


@pytest.mark.parametrize("streaming", ["false", "true"])
def test_a_sealed_model_comes_and_goes(streaming: str, tmp_path: Path) -> None:
    """Its key is released once, at boot; its answers are those of the plain file each time."""
    path, models = _policy(tmp_path, loads={"first": "always", "later": "demand"})
    key, plain = tmp_path / "key", tmp_path / "later.gguf"
    key.touch(0o600)
    key.write_text(KEY_OF_MODEL.hex())
    made = sealing.seal(plain, tmp_path / "later.sealed", KEY_OF_MODEL, tile_size=65536)
    block = (f'file   = "later.sealed"\n  streaming_decrypt = {streaming}\n  sealed_header_sha256 = '
             f'"{made.header_sha256.hex()}"\n  key {{\n provider = "file"\n path = "{key}"\n }}')
    server = Server(path, list(models.values())).wait_ready()
    assert 200 == _change(server, load="later").status_code
    said = _answer(server, "later", 7)
    assert 0 == server.stop()
    path.write_text(path.read_text().replace('file   = "later.gguf"', block))
    server = Server(path, list(models.values())).wait_ready()
    try:
        for _ in range(2):
            assert 200 == _change(server, load="later").status_code
            assert said == _answer(server, "later", 7)
            assert 200 == _change(server, unload="later").status_code
            _settled(server, later="unloaded")
    finally:
        assert 0 == server.stop()


def test_no_model_at_boot(tmp_path: Path) -> None:
    """The appliance is ready, and attests that it has none; the first one comes later."""
    path, models = _policy(tmp_path, loads={"later": "demand"})
    server = Server(path, list(models.values())).wait_ready()
    try:
        assert [] == _evidence(server, tmp_path / "evidence.json")[1]
        assert "loaded: none" in _asked(server, "later").json()["error"]["message"]
        assert 200 == _change(server, load="later").status_code
        assert _answer(server, "later", 1)
    finally:
        assert 0 == server.stop()


def test_reading_a_model_is_given_up_when_the_service_ends(tmp_path: Path) -> None:
    """In the middle of the file: nothing of the model stays, and its share of the memory is free again."""
    path, _ = _policy(tmp_path, loads={"stays": "always", "later": "demand"})
    policy = load(path).policy
    catalogue = Catalogue(find_models(policy, [tmp_path]))
    models = ModelLoader(policy, catalogue, kernels(), None, budget.fitting(policy, catalogue), {})
    read: list[int] = []

    def progress(done: int, total: int) -> None:
        read.append(done)
        models.end()
        go_on(done, total)

    go_on, models._go_on = models._go_on, progress
    with pytest.raises(BootError, match="the service ends"):
        models.load("later", {})
    assert 1 == len(read)
    assert {"stays"} == models.shares.keys()
    models.ending.clear()
    models._go_on = go_on
    models.load("later", {}).close()
    assert {"stays", "later"} == models.shares.keys()
