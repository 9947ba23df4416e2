"""`privacy.memory_access = "oblivious"` on the demo model, booted: the answers of "open", and what is refused."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from appliance.models.sealed.reader import structure
from appliance.sealing import sealing
from tests.support.demo_model import demo_model
from tests.support.sealed_models import KEY
from tests.support.server import Server, write_policy

ASKED = {"model": "demo", "messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 12}
DRAWN: tuple[dict[str, Any], ...] = ({"temperature": 0}, {"temperature": 0.9, "top_k": 40, "seed": 7}, {"seed": 5})
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": {
    "type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"], "additionalProperties": False}}}
REFUSED = {"logit_bias": {"logit_bias": {"5": 1}}, "logprobs": {"logprobs": True},
           "presence_penalty": {"presence_penalty": 0.5}, "constraint": {"response_format": SCHEMA},
           "top_p without top_k": {"top_k": 0}, "rule for its end": {"ignore_eos": True}}


def _policy(folder: Path, how: str) -> Path:
    (folder / "key").touch(0o600)
    (folder / "key").write_text(KEY.hex())
    file = folder / "demo.sealed"
    sealing.seal(demo_model(), file, KEY)
    pins = (f'sealed_header_sha256 = "{structure(file)[0].digest.hex()}"\n'
            f'key {{\n provider = "file"\n path = "{folder / "key"}"\n }}\n'
            'streaming_decrypt = true\naccess_pattern = "oblivious"\ncontext_length = 1024')
    path = write_policy(folder, {"demo": file}, model=pins, schema=2, privacy=f'memory_access = "{how}"',
                        audit="receipts = true")
    sealed_digest, plain = (hashlib.sha256(each.read_bytes()).hexdigest() for each in (file, demo_model()))
    path.write_text(path.read_text().replace(sealed_digest, plain))
    return path


def _streamed(client: httpx.Client, body: dict[str, Any]) -> str:
    answer = client.post("/v1/chat/completions", json=body | {"stream": True})
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    return "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])


def _answers(folder: Path, how: str) -> list[str]:
    """The texts, whole and streamed; what is shown and refused besides."""
    folder.mkdir()
    server = Server(_policy(folder, how), [folder / "demo.sealed"]).wait_ready()
    try:
        with server.http() as client:
            assert how == client.get("/health").json()["memory_access"]
            found = [client.post("/v1/chat/completions", json=ASKED | more).json()["choices"][0]["message"]["content"]
                     for more in DRAWN]
            assert found == [_streamed(client, ASKED | more) for more in DRAWN]
            for name, more in REFUSED.items() if how == "oblivious" else ():
                refused = client.post("/v1/chat/completions", json=ASKED | more)
                assert (400, "unsupported_parameter") == (refused.status_code, refused.json()["error"]["code"]), name
                assert name.split()[0] in refused.json()["error"]["message"]
    finally:
        assert 0 == server.stop()
    return found


@pytest.mark.slow
def test_the_answers_are_those_of_open(tmp_path: Path) -> None:
    """Greedy and drawn, whole and streamed, to the byte; what is not covered is a 400 that names it."""
    assert _answers(tmp_path / "oblivious", "oblivious") == _answers(tmp_path / "open", "open")
