"""`privacy.memory_access = "oblivious"` on the demo model, booted: the answers of "open", what is refused, and what
verdicts and receipts say."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from appliance.auditor import receipts, replay
from appliance.auditor.receipts import ReceiptDemands
from appliance.cli.main import main
from appliance.models.sealed.reader import structure
from appliance.policy import load
from appliance.receipts.statement import OBLIVIOUS
from appliance.sealing import sealing
from tests.support.demo_model import demo_model
from tests.support.extent import some
from tests.support.sealed_models import KEY
from tests.support.server import Server, write_policy

ASKED = {"model": "demo", "messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 12}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": {
    "type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"], "additionalProperties": False}}}
PENALISED = {"repeat_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.25, "dry_multiplier": 0.8,
             "dry_penalty_last_n": 1024}
DRAWN: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0}, "short": {"temperature": 0.9, "top_k": 40, "seed": 7}, "all": {"seed": 5},
    "nucleus": {"seed": 6, "top_k": 0, "top_p": 0.8, "temperature": 1.1},
    "penalised": {"seed": 8, "logit_bias": {"253": 3}, **PENALISED},
    "tokens": {"seed": 9, "logprobs": True, "top_logprobs": 3}, "ended": {"seed": 2, "ignore_eos": True},
    "schema": {"seed": 3, "response_format": SCHEMA}, "stopped": {"temperature": 0, "stop": ["is Par", "France"]}}
REFUSED: dict[str, dict[str, Any]] = {
    "penalties after": {"samplers": ["top_k", "penalties"], "top_k": 40, "presence_penalty": 0.5},
           "dry_penalty_last_n": {"dry_multiplier": 0.8}}
ASKING = {"appliance-receipt": "1"}
JSON = {"content-type": "application/json"}
HELLO = 'She said "hé 中😀"\\\n\t and <|im_end|> left. \n'
OTHERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/completions", {"prompt": [HELLO, "a"], "max_tokens": 4, "echo": True}),
    ("/v1/completions", {"prompt": HELLO, "max_tokens": 4, "negative_prompt": HELLO, "guidance_scale": 1.5}),
    ("/v1/messages", {"system": [{"type": "text", "text": HELLO}], "max_tokens": 4, "messages": [
        {"role": "user", "content": [{"type": "text", "text": HELLO}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "It"}]}),
    ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": HELLO}]}),
    ("/v1/responses", {"input": HELLO, "instructions": "Say it.", "max_output_tokens": 4}),
    ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_text", "text": HELLO}]}],
                       "max_output_tokens": 4}),
    ("/v1/responses", {"input": [
        {"role": "user", "content": "Call it."},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": "é"}'},
        {"type": "function_call_output", "call_id": "c", "output": HELLO}], "max_output_tokens": 4}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "\u3000a"}], "max_tokens": 4}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": ""}], "max_tokens": 4}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": HELLO}], "max_tokens": 4, "user": "\ue000"}),
    ("/v1/chat/completions", {"messages": [{"role": "nobody", "content": HELLO}]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "so " * 2000}]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": HELLO, "extra": HELLO}], "max_tokens": 4}))
STREAMS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/completions", {"prompt": ["Once", "Two"], "n": 2, "max_tokens": 8, "seed": 4, "temperature": 1.5}),
    ("/v1/completions", {"prompt": "Once", "best_of": 2, "max_tokens": 6, "seed": 3, "stop": ["a", "e"]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": HELLO}], "max_tokens": 12,
                              "stream_options": {"include_usage": True}}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "user": "\U0010fffd"}),
    ("/v1/messages", {"max_tokens": 12, "messages": [{"role": "user", "content": "Hi"}], "stop_sequences": [" I"]}),
    ("/v1/responses", {"input": "Hi", "max_output_tokens": 12}))
"""As they stand, and as streams."""
THINKING = ("{% for tool in tools or [] %}{{ tool.function | tojson }}<tool_call>{\"name\": </tool_call>{% endfor %}"
            "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
            "<|im_start|>assistant\n{% if messages[0].role != 'system' %}<think>\n{# </think> #}{% endif %}")
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {
    "type": "object", "properties": {"word": {"type": "string", "maxLength": 9}}, "required": ["word"]}}}
THOUGHT: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": HELLO}], "max_tokens": 14}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Say '</think>' and then hello."}],
                              "max_tokens": 24, "stop": ["hello"]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 24,
                              "response_format": SCHEMA}),
    ("/v1/messages", {"max_tokens": 14, "messages": [{"role": "user", "content": "Hi"}]}),
    ("/v1/responses", {"input": "Hi", "max_output_tokens": 14}),
    *(("/v1/chat/completions", {"messages": [{"role": "system", "content": "Be short."},
                                             {"role": "user", "content": HELLO}],
                                "max_tokens": 40, "tools": [TOOL], "tool_choice": choice})
      for choice in ("required", "auto")))
"""To a model whose prompt ends within a thought, or that may call a function."""
REDACTION = r"""
redaction {
  apply_to  = ["prompt", "answer"]
  detectors = ["email", "phone", "secret"]
  pattern "city" {
    regex       = "\\bPar[a-z]{1,4}\\b|\\bI\\b"
    replacement = "[city]"
  }
  pattern "start" {
    regex       = "^I'm"
    replacement = "We"
  }
}
"""
ASKED_PLAINLY: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "What is the capital of France?"}]}),
    ("/v1/chat/completions", {"messages": [{
        "role": "user", "content": "Repeat: Paris, bob@mail.example.org, +15552345678."}]}),
    ("/v1/chat/completions", {"messages": [
        {"role": "system", "content": "You know Paris."},
        {"role": "user", "content": [{"type": "text", "text": HELLO}, {"type": "text", "text": "\ue000 and Paris"}]}]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Say \U000f0000 and ½ twice."}],
                              "stop": ["twice"]}),
    ("/v1/completions", {"prompt": ["The capital of France is", "Paris is"], "n": 2, "seed": 4, "temperature": 0.8}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "Write to bob@mail.example.org"}]}),
    ("/v1/responses", {"input": "Hi", "instructions": "Speak of Paris."}))
"""To a policy that redacts: of texts that it changes, and of those that it leaves as they are."""
FAULTY = (b'{"model": "demo", "messages": [{"role": "user", "content": "a\\ud800"}]}',
          b'{"model": "demo", "messages": [{"role": "user", "content": "a\x01"}]}',
          b'{"model": "demo",\n "messages": [{"role": "user", "content": "a"}],, "a": 1}',
          b'{"model": "demo", "messages": [{"role": "user", "content": "\xff"}]}')
OWN = ("id", "call_id", "created", "created_at", "completed_at", "item_id", "system_fingerprint")  # of an answer


def _policy(folder: Path, how: str, template: str | None = None, privacy: str = "") -> Path:
    (folder / "key").touch(0o600)
    (folder / "key").write_text(KEY.hex())
    file = folder / "demo.sealed"
    sealing.seal(demo_model(), file, KEY)
    pins = (f'sealed_header_sha256 = "{structure(file)[0].digest.hex()}"\n'
            f'key {{\n provider = "file"\n path = "{folder / "key"}"\n }}\n'
            'streaming_decrypt = true\naccess_pattern = "oblivious"\ncontext_length = 1024\n'
            'sampling {\n max_logprobs = 3\n }'
            + ("" if template is None else f"\nchat_template = {json.dumps(template)}"))
    path = write_policy(folder, {"demo": file}, model=pins, schema=2, privacy=f'memory_access = "{how}"{privacy}',
                        audit="receipts = true")
    sealed_digest, plain = (hashlib.sha256(each.read_bytes()).hexdigest() for each in (file, demo_model()))
    path.write_text(path.read_text().replace(sealed_digest, plain))
    return path


def _streamed(client: httpx.Client, body: dict[str, Any]) -> str:
    answer = client.post("/v1/chat/completions", json=body | {"stream": True})
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    return "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])


def _events(answer: httpx.Response) -> Any:
    """The data of a stream's events, without what is its own; those of several choices by choice."""
    found = [_same(json.loads(line[6:])) for line in answer.text.splitlines() if line.startswith("data: {")]
    return sorted(found, key=lambda event: [each["index"] for each in event.get("choices", ())])


def _same(value: Any) -> Any:
    """An answer without what is its own."""
    if isinstance(value, dict):
        return {name: _same(item) for name, item in value.items() if name not in OWN}
    return [_same(item) for item in value] if isinstance(value, list) else value


def _verdict(server: Server, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """The outcome of each rule, of simulated evidence, which is never verified."""
    capsys.readouterr()
    assert 0 != main(["verify", server.url, "--policy", str(server.policy), "--json"])
    return {each["rule"]: each["outcome"] for each in json.loads(capsys.readouterr().out)["findings"]}


def _replayed(folder: Path, answers: dict[str, bytes], how: str) -> None:
    """Each receipt holds, names the field, and its answer is computed again by an engine that does not sweep; of those
    of "open", which other tests replay, a few."""
    log, loaded = (folder / "audit.jsonl").read_bytes().splitlines(), load(folder / "policy.hcl")
    again = some(list(answers), 2)
    demands = ReceiptDemands(bytes.fromhex(json.loads(log[0])["audit_key_ed25519"]), loaded.digest.hex(), loaded.policy)
    for name, answer in answers.items():
        taken = receipts.take(answer)
        receipt, _ = receipts.verify(taken, demands)
        assert (1 if how == "oblivious" else None) == receipt.sampling.settings.get(OBLIVIOUS)
        if how == "open" and name not in again:
            continue
        found = replay.replay(receipt, taken.opening, folder / "demo.sealed", key=folder / "key", threads=2)
        assert (None, len(receipts.tokens(taken.opening)[1])) == (found.wrong, found.tokens), name


def _answers(folder: Path, how: str, capsys: pytest.CaptureFixture[str]) -> list[Any]:
    """The messages, whole, and the texts streamed (of "open" a few); what is shown and refused besides."""
    folder.mkdir()
    server, kept = Server(_policy(folder, how), [folder / "demo.sealed"]).wait_ready(), dict[str, bytes]()
    try:
        with server.http() as client:
            assert how == client.get("/health").json()["memory_access"]
            for name, more in DRAWN.items():
                answer = client.post("/v1/chat/completions", json=ASKED | more, headers=ASKING)
                assert 200 == answer.status_code, answer.text
                kept[name] = answer.content
            choices = [json.loads(each)["choices"] for each in kept.values()]
            drawn = list(DRAWN) if how == "oblivious" else some(list(DRAWN), 3)
            streamed = {name: _streamed(client, ASKED | DRAWN[name]) for name in drawn}
            whole = {name: each[0]["message"]["content"] for name, each in zip(DRAWN, choices, strict=True)}
            assert {name: whole[name] for name in drawn} == streamed
            for path, body in OTHERS:
                answer = client.post(path, json={"model": "demo", "temperature": 0, **body})
                choices.append([answer.status_code, _same(answer.json()), answer.headers.get("appliance-ignored")])
            for path, body in STREAMS:
                asked = {"model": "demo", "temperature": 0, **body}
                choices.append(_same(client.post(path, json=asked).json()))
                if "best_of" not in body:
                    choices.append(_events(client.post(path, json=asked | {"stream": True})))
            for faulty in FAULTY:
                answer = client.post("/v1/chat/completions", content=faulty, headers=JSON)
                choices.append([answer.status_code, answer.json()])
            for name, more in REFUSED.items() if how == "oblivious" else ():
                refused = client.post("/v1/chat/completions", json=ASKED | more)
                assert (400, "unsupported_parameter") == (refused.status_code, refused.json()["error"]["code"]), name
                assert name in refused.json()["error"]["message"]
        assert ("holds" if how == "oblivious" else None) == _verdict(server, capsys).get("memory-access")
    finally:
        assert 0 == server.stop()
    _replayed(folder, kept, how)
    return choices


@pytest.mark.slow
def test_the_answers_are_those_of_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """To the byte, with log-probabilities, whole and streamed. What is not covered is a 400 that names it. Verdicts and
    receipts name the field, and the answers are computed again."""
    assert _answers(tmp_path / "oblivious", "oblivious", capsys) == _answers(tmp_path / "open", "open", capsys)


def _thoughts(folder: Path, how: str) -> list[Any]:
    """Answers that begin with a thought, whole and streamed."""
    folder.mkdir()
    server, found = Server(_policy(folder, how, THINKING), [folder / "demo.sealed"]).wait_ready(), list[Any]()
    try:
        with server.http() as client:
            for path, body in THOUGHT:
                asked = {"model": "demo", "temperature": 0, **body}
                found.append(_same(client.post(path, json=asked).json()))
                found.append(_events(client.post(path, json=asked | {"stream": True})))
    finally:
        assert 0 == server.stop()
    return found


@pytest.mark.soak
@pytest.mark.slow
def test_thoughts_are_those_of_open(tmp_path: Path) -> None:
    """Reasoning is told apart from content, and their bytes are the same."""
    found = _thoughts(tmp_path / "oblivious", "oblivious")
    assert found == _thoughts(tmp_path / "open", "open")
    assert found[0]["choices"][0]["message"]["reasoning_content"]
    assert "look_up" == found[-4]["choices"][0]["message"]["tool_calls"][0]["function"]["name"]


def _joined(answer: httpx.Response) -> dict[str, str]:
    """The text that a stream's events add up to, by what it is."""
    found = dict[str, str]()
    for line in answer.text.splitlines():
        for where, text in _texts(json.loads(line[6:]), "") if line.startswith("data: {") else ():
            found[where] = found.get(where, "") + text
    return found


def _texts(event: Any, where: str) -> list[tuple[str, str]]:
    if isinstance(event, list):
        return [each for at, item in enumerate(event) for each in _texts(item, f"{where}/{item.get('index', at)}")
                if isinstance(item, dict)]
    if not isinstance(event, dict):
        return []
    named = ("content", "text", "delta", "thinking", "reasoning_content", "arguments", "partial_json", "name")
    kind = event.get("type", "")
    found = [(f"{kind}{where}/{name}", event[name]) for name in named if isinstance(event.get(name), str)]
    return found + [each for name, item in event.items() if name not in ("response", "item", "part")
                    for each in _texts(item, f"{where}/{name}")]


def _redacted(folder: Path, how: str, template: str | None) -> list[Any]:
    """Answers to a policy that redacts: whole, and what streams add up to."""
    folder.mkdir()
    server = Server(_policy(folder, how, template, REDACTION), [folder / "demo.sealed"]).wait_ready()
    found = list[Any]()
    try:
        with server.http() as client:
            for path, body in ASKED_PLAINLY if template is None else THOUGHT:
                most = "max_output_tokens" if "responses" in path else "max_tokens"
                asked = {"model": "demo", "temperature": 0, most: 24, **body}
                answer = client.post(path, json=asked)
                assert 200 == answer.status_code, answer.text
                found += [_same(answer.json()), _joined(client.post(path, json=asked | {"stream": True}))]
    finally:
        assert 0 == server.stop()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("template", [None, pytest.param(THINKING, marks=pytest.mark.soak)], ids=("plain", "thinking"))
def test_redacted_answers_are_those_of_open(template: str | None, tmp_path: Path) -> None:
    """Whole ones to the byte, streams in what they add up to."""
    found = _redacted(tmp_path / "oblivious", "oblivious", template)
    assert found == _redacted(tmp_path / "open", "open", template)
    assert "[city]" in json.dumps(found)
