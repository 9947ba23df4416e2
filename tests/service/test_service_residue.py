"""What is left of requests in the memory of the service, seconds after they have ended."""

from __future__ import annotations

import itertools
import json
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import memory, waiting
from tests.support.server import KEY, Server, sha256, write_policy

# Short, so that tools have room in a context of 512 letters
TEMPLATE = json.dumps("{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}"
                      "{% for message in messages %}{{ message.role }}:{{ message.content }}{% for call in "
                      "message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}\n"
                      "{% endfor %}assistant:")
WAIT = 30.0  # seconds at most for what is scrubbed one second after the last request


@pytest.fixture(scope="module")
def scrubbed(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[tuple[Server, str]]:
    """A server in its sandbox, and a key that stands nowhere else."""
    key = f"sk-{secrets.token_hex(24)}"
    policy = write_policy(tmp_path_factory.mktemp("residue"), {"tiny": tiny_model}, model=f"chat_template = {TEMPLATE}")
    policy.write_text(policy.read_text().replace(sha256(KEY), sha256(key)))
    running = Server(policy, [tiny_model], measured=False, fresh=True).wait_ready()
    yield running, key
    running.stop()


def _left(pid: int, words: dict[str, bytes]) -> dict[str, int]:
    return memory.counts(pid, words)


def _ask(server: Server, key: str, canary: str, *, stream: bool, lines: int) -> str:
    """The answer to a prompt of so many lines, of which the first has the canary."""
    text = f"{canary}\n" + "ab " * lines
    with server.http(key) as http:
        answer = http.post("/v1/chat/completions", json={
            "model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 48, "stream": stream})
    assert 200 == answer.status_code, answer.text
    if not stream:
        return str(answer.json()["choices"][0]["message"]["content"])
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"])


@pytest.mark.parametrize("lines", [1, 60])
@pytest.mark.parametrize("stream", [False, True])
def test_nothing_of_a_request_stays(stream: bool, lines: int, scrubbed: tuple[Server, str]) -> None:
    """Neither the key nor the prompt's word nor the answer is in the process's memory, in whatever encoding Python
    has for it, also where no other request follows."""
    memory.require_root()
    server, key = scrubbed
    canary = secrets.token_hex(16)
    answer = _ask(server, key, canary, stream=stream, lines=lines)
    words = {"key": key.encode(), "prompt": canary.encode(), "prompt, 2 bytes": canary.encode("utf-16-le"),
             "answer": answer.encode(), "answer, 2 bytes": answer.encode("utf-16-le", "surrogatepass"),
             "answer, JSON": json.dumps(answer, ensure_ascii=False)[1:-1].encode()}
    waiting.until(lambda: not _left(server.process.pid, words), "memory without them", most=1.2)
    assert server.process.poll() is None


def _structures(canary: str) -> Iterator[tuple[str, dict[str, object]]]:
    """Each way to give an answer its structure, with a word in it; and the tools that it may call."""
    words = (f"{canary}-{place}" for place in itertools.count())
    asked = {"model": "tiny", "prompt": "ab", "max_tokens": 2}
    schema = {"type": "object", "properties": {next(words): {"enum": [next(words), next(words)]}}}
    yield "/v1/completions", {**asked, "json_schema": schema}
    yield "/v1/completions", {**asked, "json_schema": {"type": "string", "pattern": f"^{next(words)}[a-z]+$"}}
    yield "/v1/completions", {**asked, "regex": f"{next(words)}[a-z]+"}
    yield "/v1/completions", {**asked, "guided_choice": [next(words), next(words)]}
    yield "/v1/completions", {**asked, "grammar": f'root ::= "{next(words)}" [a-z]+'}
    yield "/v1/completions", {**asked, "structured_outputs": {"grammar": f'start: "{next(words)}" /[a-z]+/'}}
    yield "/v1/completions", {**asked, "structured_outputs": {"grammar": f'start: missing "{next(words)}"'}}
    yield "/v1/completions", {**asked, "json_schema": {next(words): 1}}
    tool = {"type": "function", "function": {"name": next(words), "description": next(words), "parameters": {
        "type": "object", "properties": {next(words): {"type": "string"}}}}}
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "ab"}], "max_tokens": 2}
    yield "/v1/chat/completions", {**chat, "tools": [tool], "tool_choice": "required"}
    yield "/v1/chat/completions", {**chat, "chat_template_kwargs": {canary.replace("-", "_"): 1}}


@pytest.mark.slow
def test_nothing_of_a_structure_stays(scrubbed: tuple[Server, str]) -> None:
    """Schemas, patterns, choices, grammars and tools are kept for a minute, as compiled constraints; names in paths
    and in queries not at all."""
    memory.require_root()
    server, key = scrubbed
    structure, path = f"s{secrets.token_hex(12)}", f"p{secrets.token_hex(12)}"
    with server.http(key) as http:
        answers = [http.post(place, json=body) for place, body in _structures(structure)]
        assert [200] * 6 + [400] * 2 + [200] * 2 == [each.status_code for each in answers], answers[8].text
        assert 404 == http.get(f"/v1/models/{path}").status_code
        assert 404 == http.get(f"/{path}/{path}").status_code
        http.get("/v1/usage", params={"days": path})
        http.get("/v1/attestation", params={"nonce": path})
        http.get("/health", headers={"cookie": f"a={path}"})
    pid = server.process.pid
    for name, word in (("path", path), ("structure", structure)):
        words = {name: word.encode(), f"{name}, 2 bytes": word.encode("utf-16-le")}
        waiting.until(lambda words=words: not _left(pid, words), "memory without them", most=8.0)
    assert server.process.poll() is None


def test_a_word_that_is_held_is_found(scrubbed: tuple[Server, str]) -> None:
    """The search works: what the service holds for good is found."""
    memory.require_root()
    assert memory.count(scrubbed[0].process.pid, b"/v1/chat/completions") > 0


def test_a_refused_key_does_not_stay_either(scrubbed: tuple[Server, str]) -> None:
    """A key that is not valid here may be valid elsewhere."""
    memory.require_root()
    server, wrong = scrubbed[0], f"sk-{secrets.token_hex(24)}"
    with server.http(wrong) as http:
        assert 401 == http.post("/v1/chat/completions", json={}).status_code
        waiting.until(lambda: 0 == memory.count(server.process.pid, wrong.encode()),
                      "memory without it while the connection is open")
