"""Eight streams while tenants, keys, an alias and then the policy change: each stream ends whole, with the text that it
has without any change, and new requests find what is new."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import synthetic, tenant_lists
from tests.support.server import Server, write_policy
from tests.support.tenant_lists import FILE, signed

STREAMS, TOKENS = 8, 200
ADMIN, LEFT, RIGHT, GOES, COMES = "sk-admin", "sk-left", "sk-right", "sk-goes", "sk-comes"
MODELS = {"models": ["first", "second"]}
BEFORE: dict[str, dict[str, Any]] = {
    "boss": {"keys": [ADMIN], "role": "admin", **MODELS}, "goes": {"keys": [GOES], **MODELS},
    "left": {"keys": [LEFT], **MODELS}, "right": {"keys": [RIGHT], **MODELS}}
AFTER: dict[str, dict[str, Any]] = {
    "boss": BEFORE["boss"], "left": {"keys": [LEFT, COMES], "tier": "gold", **MODELS}, "right": BEFORE["right"]}
TIERS = [{"name": "gold", "weight": 3, "requests_per_minute": 1000}]


def _server(folder: Path, alias: str, version: int, tenants: dict[str, dict[str, Any]], **more: Any) -> Server:
    """A server with two models of the same weights; the second one comes on demand."""
    folder.mkdir()
    model = folder / "tiny.gguf"
    model.write_bytes(synthetic.model(synthetic.VARIANTS["Q8_0"], 2048))
    policy = write_policy(folder, {"first": model, "second": model}, schema=2, model='load = "boot"',
                          limits="generation_tokens = 400\n  concurrent_requests = 16",
                          service='drain_timeout = "10m"')
    text = tenant_lists.with_authority(policy).read_text() + f'\nalias "chat" {{\n  models = {alias}\n}}\n'
    at = text.index('load = "boot"', text.index('model "second"'))
    policy.write_text(text[:at] + 'load = "demand"' + text[at + len('load = "boot"'):])
    (folder / FILE).write_bytes(signed(version, tenants, **more))
    return Server(policy, [model]).wait_ready()


def _asked(seed: int, **more: Any) -> dict[str, Any]:
    return {"model": "chat", "prompt": "once", "max_tokens": TOKENS, "temperature": 1.0, "seed": seed,
            "logit_bias": {"2": -100}, **more}


def _whole(server: Server, key: str, seed: int, **more: Any) -> httpx.Response:
    with server.http(key) as http:
        return http.post("/v1/completions", json=_asked(seed, **more))


def _stream(server: Server, seed: int, began: Callable[[], object]) -> tuple[str, str, list[str], bool]:
    """A stream's text, model and ends, and whether it said that it is over."""
    text, model, ends, over = "", "", list[str](), False
    with server.http(LEFT if seed % 2 else RIGHT) as http, http.stream(
            "POST", "/v1/completions", json=_asked(seed, stream=True)) as answer:
        assert 200 == answer.status_code
        for line in answer.iter_lines():
            over = over or line == "data: [DONE]"
            if line.startswith("data: {"):
                event = json.loads(line[6:])
                assert "error" not in event, event
                model = event["model"]
                for choice in event["choices"]:
                    text += choice["text"]
                    ends += [choice["finish_reason"]] if choice["finish_reason"] else []
                began()
    return text, model, ends, over


@contextlib.contextmanager
def _streaming(server: Server, texts: list[str], model: str) -> Iterator[None]:
    """Eight streams that have begun, during what is done within; each ends as it should."""
    began = [threading.Event() for _ in range(STREAMS)]
    with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
        streams = [pool.submit(_stream, server, seed, began[seed].set) for seed in range(STREAMS)]
        for each in began:
            assert each.wait(300)
        assert not all(each.done() for each in streams)
        yield
        assert [(text, model, ["length"], True) for text in texts] == [each.result(600) for each in streams]


@pytest.mark.slow
def test_nothing_is_dropped_while_all_changes(tmp_path: Path) -> None:
    """A newer list and an alias's other model in one process; another policy by a second process, which takes over
    before the first one is told to end."""
    old = _server(tmp_path / "old", '["second", "first"]', 1, BEFORE)
    new = None
    try:
        texts = [_whole(old, LEFT, seed).json()["choices"][0]["text"] for seed in range(STREAMS)]
        assert STREAMS == len(set(texts))
        with _streaming(old, texts, "first"), old.http(ADMIN) as http:
            assert 200 == _whole(old, GOES, 0, max_tokens=1).status_code
            pushed = http.post("/v1/admin/tenants", content=signed(2, AFTER, tiers=TIERS),
                               headers={"content-type": "application/json"})
            assert (200, 1) == (pushed.status_code, pushed.json()["revoked_keys"])
            assert (401, 200) == (_whole(old, GOES, 0, max_tokens=1).status_code,
                                  _whole(old, COMES, 0, max_tokens=1).status_code)
            assert "first" == _whole(old, RIGHT, 0, max_tokens=1).json()["model"]
            assert 200 == http.post("/v1/admin/models", json={"load": "second"}).status_code
            assert "second" == _whole(old, RIGHT, 0, max_tokens=1).json()["model"]
            assert 200 == http.post("/v1/admin/models", json={"unload": "first"}).status_code
        assert texts[0] == _whole(old, COMES, 0).json()["choices"][0]["text"]
        with _streaming(old, texts, "second"):
            new = _server(tmp_path / "new", '["first"]', 3, AFTER, tiers=TIERS)
            before, after = (_whole(each, COMES, 0, max_tokens=1).json() for each in (old, new))
            assert ("second", "first") == (before["model"], after["model"])
            assert before["system_fingerprint"] != after["system_fingerprint"]
            old.process.send_signal(signal.SIGTERM)
            assert texts[1] == _whole(new, LEFT, 1).json()["choices"][0]["text"]
        assert 0 == old.process.wait(60)
    finally:
        for server in (old, new):
            if server is not None:
                assert 0 == server.stop()
