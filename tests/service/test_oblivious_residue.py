"""Under `memory_access = "oblivious"`: what is left of requests to all APIs in the memory of the service, a second
after each, and at its exit."""

from __future__ import annotations

import json
import os
import secrets
import signal
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from appliance.sealing import sealing
from appliance.text.tokenizer import Tokenizer
from tests.support import memory, oblivious, waiting
from tests.support.demo_model import demo_model
from tests.support.exits import Traced
from tests.support.extent import WHOLE
from tests.support.sealed_models import KEY
from tests.support.server import KEY as API_KEY
from tests.support.server import Server, sha256, write_policy

TEMPLATE = ("{% for tool in tools or [] %}{{ tool.function | tojson }}{% endfor %}{% for message in messages %}"
            "<|im_start|>{{ message.role }}\n{{ message.content }}{% for call in message.tool_calls or [] %}"
            "<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
            "<|im_start|>assistant\n")
MODEL = '''sealed_header_sha256 = "{}"
  key {{
    provider = "file"
    path = "{}"
  }}
  streaming_decrypt = true
  access_pattern = "oblivious"
  context_length = 512
  chat_template = {}
  prefix_cache {{
    size = "32MiB"
    lifetime = "1s"
  }}
  session_persistence = {}'''
STATE = 'state {{\n  device = "{}"\n  key {{\n    provider = "file"\n    path = "{}"\n  }}\n}}\n'
TOOL = {"name": "look_up", "description": "Looks a word up.", "parameters": {
    "type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}}


@pytest.fixture(params=[False, True], ids=["alone", "sessions"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Server, bool]]:
    """A server in its sandbox, and whether it keeps sessions, on a disk in memory."""
    memory.require_root()
    keeps = bool(request.param)
    disk = Path(f"/dev/shm/appliance-residue-{os.getpid()}")  # noqa: S108
    disk.write_bytes(b"")
    os.truncate(disk, 96 << 20)
    for name, text in (("key", KEY.hex()), ("state.key", "2e" * 32)):
        (tmp_path / name).touch(0o600)
        (tmp_path / name).write_text(text)
    sealed = tmp_path / "demo.sealed"
    made = sealing.seal(demo_model(), sealed, KEY)
    model = MODEL.format(made.header_sha256.hex(), tmp_path / "key", json.dumps(TEMPLATE), str(keeps).lower())
    retention = '\n retention { sessions = "1h" }' if keeps else ""
    policy = write_policy(tmp_path, {"demo": sealed}, schema=2, privacy='memory_access = "oblivious"' + retention,
                          model=model)
    text = policy.read_text().replace(sha256(sealed.read_bytes()), made.sha256.hex())
    policy.write_text(text + (STATE.format(disk, tmp_path / "state.key") if keeps else ""))
    running = Server(policy, [sealed], measured=False, fresh=True)
    try:
        yield running.wait_ready(), keeps
    finally:
        running.process.kill()
        running.process.wait()
        disk.unlink()


def _requests(word: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """A request of each kind, with a word in its texts."""
    said = f"Tell me about {word}, please."
    chat = {"messages": [{"role": "user", "content": said}], "max_tokens": 24}
    schema = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": {
        "type": "object", "properties": {"a": {"type": "string", "maxLength": 12}}, "required": ["a"],
        "additionalProperties": False}}}
    called = [{"role": "user", "content": said}, {"role": "assistant", "content": None, "tool_calls": [{
        "id": "c", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": f"It is {word}."}]
    tools = {"tools": [{"type": "function", "function": TOOL}]}
    yield "chat", "/v1/chat/completions", chat
    yield "stream", "/v1/chat/completions", {**chat, "stream": True}
    yield "text", "/v1/completions", {"prompt": said, "max_tokens": 24}
    yield "schema", "/v1/chat/completions", {**chat, "response_format": schema}
    yield "tools", "/v1/chat/completions", {**chat, "messages": called, **tools}
    yield "messages", "/v1/messages", {**chat, "system": f"Say {word}."}
    yield "responses", "/v1/responses", {"input": said, "instructions": f"Say {word}.", "max_output_tokens": 24}
    yield "session", "/v1/completions", {"prompt": said + " It is a word." * 20, "max_tokens": 4}


def _answered(answer: httpx.Response) -> str:
    """The text of an answer."""
    assert 200 == answer.status_code, answer.text
    if answer.headers["content-type"].startswith("text/event-stream"):
        events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
        return "".join(each["delta"].get("content") or "" for event in events for each in event["choices"])
    body = answer.json()
    if "choices" in body:
        choice = body["choices"][0]
        return str(choice.get("text") or (choice.get("message") or {}).get("content") or "")
    return str((body.get("content") or body["output"][0]["content"])[0]["text"])


def _looked_for(word: str, text: str, tokenizer: Tokenizer) -> dict[str, bytes | Sequence[int]]:
    """A word and an answer as texts, and their token ids as numbers of 4 and 8 bytes, and as Python has them."""
    found = dict[str, bytes | Sequence[int]]()
    for name, each in (("word", word), ("answer", text)):
        ids = tokenizer.encode(each)[1:5]
        if len(ids) < 4 or len(set(ids)) < 3:  # a text that others may have
            continue
        forms = {"UTF-8": each.encode(), "2 bytes": each.encode("utf-16-le"), "JSON": json.dumps(each)[1:-1].encode()}
        forms |= {f"ids of {size} bytes": struct.pack(f"<4{kind}", *ids) for size, kind in ((4, "i"), (8, "q"))}
        found |= {f"{name}, {form}": data for form, data in forms.items()}
        found[f"{name}, ids as objects"] = ids
    return found


@pytest.mark.slow
def test_neither_prompt_nor_answer_stays(served: tuple[Server, bool]) -> None:
    """Through chats, streams, completions, schemas, tools, messages and responses: neither texts nor token ids are in
    memory soon after an answer (in the soak, after each), nor at the process's exit. Token ids of sessions that are
    kept are an exception until then: the table of what is on the disk has them, in locked memory."""
    running, keeps = served
    tokenizer, pid, wanted = oblivious.both()[0], running.process.pid, dict[str, bytes | Sequence[int]]()
    word = "Rumpelstiltskin-" + secrets.token_hex(8)
    asked = [each for each in _requests(word) if each[0] in ("session", "tools") or not keeps]
    for name, path, body in asked:
        with running.http(API_KEY) as http:
            text = _answered(http.post(path, json={"model": "demo", "temperature": 0, **body}))
        looked = {f"{name}: {form}": each for form, each in _looked_for(word, text, tokenizer).items()}
        wanted |= {form: each for form, each in looked.items() if each not in wanted.values()}
        if WHOLE or name == asked[-1][0]:  # one search takes seconds
            time.sleep(1.5)
            apart = {form: each for form, each in (looked if WHOLE else wanted).items()
                     if not (keeps and form.endswith("ids of 4 bytes"))}
            if memory.counts(pid, apart):  # a slow machine scrubs later
                waiting.until(lambda apart=apart: not memory.counts(pid, apart), "memory without them",
                              lambda apart=apart: memory.counts(pid, apart), most=10.0)
    traced = Traced(running.process)
    running.process.send_signal(signal.SIGTERM)
    assert {} == traced.at_exit(lambda pid: memory.counts(pid, wanted))
    assert 0 == running.process.returncode
