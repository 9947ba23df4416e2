"""Every two features of requests: what the table says goes together is answered, what it excludes is refused by name.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from appliance.api.wishes import features
from appliance.api.wishes.features import EXCLUSIONS
from appliance.policy.schema.sampling import PARAMETERS
from tests.service.test_service_tools import TEMPLATE, TOOLS
from tests.support import synthetic
from tests.support.extent import WHOLE
from tests.support.ggufs import U32, kv
from tests.support.server import Server, write_policy

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
TURNS = [{"role": "user", "content": "hello"}]


class Example(NamedTuple):
    """A request that has some features, by endpoint, and its headers."""

    has: frozenset[str]
    bodies: Mapping[str, Mapping[str, Any]]
    headers: Mapping[str, str] = {}


def _both(*has: str, **body: Any) -> Example:
    return Example(frozenset(has), {CHAT: body, TEXT: body})


def _one(path: str, *has: str, **body: Any) -> Example:
    return Example(frozenset(has), {path: body})


EXAMPLES = {
    "stream": _both("stream", stream=True),
    "n": _both(features.SEVERAL, n=2),
    "temperature": _both(temperature=0),
    "seed": _both(seed=7),
    "stop": _both("stop", stop="zz"),
    "logit_bias": _both("logit_bias", logit_bias={"5": 1}),
    "samplers": _both("samplers", samplers=["top_k", "temperature"]),
    "negative_prompt": _both("negative_prompt", negative_prompt="bad"),
    "logprobs": Example(frozenset({"logprobs"}), {CHAT: {"logprobs": True, "top_logprobs": 1}, TEXT: {"logprobs": 1}}),
    "ignore_eos": _both("ignore_eos", ignore_eos=True),
    "min_tokens": _both("min_tokens", min_tokens=1),
    "stop_token_ids": _both("stop_token_ids", stop_token_ids=[7]),
    "response_format": _both("response_format", features.BOUND, structured_outputs={"json": {"type": "object"}}),
    "grammar": _both("response_format", features.BOUND, features.GRAMMAR,
                     structured_outputs={"grammar": "start: /a+/"}),
    "use_beam_search": _both("use_beam_search", use_beam_search=True),
    "receipt": Example(frozenset({features.RECEIPT}), {CHAT: {}, TEXT: {}}, {"appliance-receipt": "1"}),
    "best_of": _one(TEXT, "best_of", features.SEVERAL, best_of=3),
    "echo": _one(TEXT, "echo", echo=True),
    "echo with logprobs": _one(TEXT, "echo", "logprobs", features.PROMPT_LOGPROBS, echo=True, logprobs=1),
    "suffix": _one(TEXT, "suffix", suffix="x"),
    "token ids": _one(TEXT, features.TOKEN_IDS, prompt=[5, 6, 7]),
    "prompts": _one(TEXT, features.SEVERAL, prompt=["hello", "yes"]),
    "tools": _one(CHAT, "tools", features.OPTIONAL_CALLS, features.NEWER_FORM, tools=TOOLS[:1]),
    "functions": _one(CHAT, "tools", features.OPTIONAL_CALLS, features.BOUND, "functions", "function_call",
                      functions=[TOOLS[0]["function"]], function_call="auto"),
    "one call": _one(CHAT, "tools", features.OPTIONAL_CALLS, features.NEWER_FORM, features.BOUND, tools=TOOLS[:1],
                     parallel_tool_calls=False),
    "a call": _one(CHAT, "tools", features.BOUND, features.NEWER_FORM, tools=TOOLS[:1], tool_choice="required"),
    "reasoning_format": _one(CHAT, "reasoning_format", reasoning_format="none"),
    "reasoning_effort": _one(CHAT, reasoning_effort="none"),
    "continue_final_message": _one(CHAT, "continue_final_message", continue_final_message=True, messages=[
        *TURNS, {"role": "assistant", "content": "a"}]),
    "add_generation_prompt": _one(CHAT, "add_generation_prompt", add_generation_prompt=True),
}
VALUES = {row.name: next(
    value for value in (0.5, 1, 2, 300) if row.low <= value <= row.high and value != row.off
    and not (row.whole and isinstance(value, float))) for row in PARAMETERS if row.name != "temperature"}
SAMPLING = {name: _both(name, **{name: value}) for name, value in VALUES.items()}
ALL = {**EXAMPLES, **SAMPLING}


def _server(folder: Path, model: Path, more: str, *, drafted: bool = False, **blocks: str) -> Server:
    limits = "concurrent_requests = 8\n  generation_tokens = 40\n  choices = 8"
    models = {"tiny": model, **({"draft": model} if drafted else {})}
    policy = write_policy(folder, models, schema=2, audit="receipts = true", limits=limits, model=more +
                          "\n  sampling {\n    max_beams = 4\n    max_logprobs = 5\n  }", **blocks)
    if drafted:
        policy.write_text(policy.read_text().replace('model "tiny" {', 'model "tiny" {\n  draft_model = "draft"'))
    return Server(policy, [model]).wait_ready()


@pytest.fixture(scope="module")
def filling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that fills in texts, for suffixes."""
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    keys = [kv(f"tokenizer.ggml.fim_{name}_token_id", U32, token)
            for name, token in (("pre", 300), ("suf", 301), ("mid", 302))]
    path.write_bytes(synthetic.model(synthetic.VARIANTS["Q8_0"], 1024, *keys))
    return path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, filling: Path) -> Iterator[Server]:
    """A server whose policy allows all of it, with a draft model, a cache of earlier texts and a context that shifts.
    """
    running = _server(tmp_path_factory.mktemp("whole"), filling,
                      "context_shift = true\n  prefix_cache {\n    size = \"4MiB\"\n  }", drafted=True)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def redacting(tmp_path_factory: pytest.TempPathFactory, filling: Path) -> Iterator[Server]:
    """A server that redacts prompts and answers."""
    running = _server(tmp_path_factory.mktemp("redacting"), filling, "", privacy="""
  redaction {
    pattern "digits" {
      regex       = "[0-9]{4}"
      replacement = "*"
    }
  }
""")
    yield running
    running.stop()


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory, filling: Path) -> Iterator[Server]:
    """A server whose model has thoughts."""
    running = _server(tmp_path_factory.mktemp("thinking"), filling, f"chat_template = {json.dumps(TEMPLATE)}")
    yield running
    running.stop()


def _wrong(http: httpx.Client, path: str, examples: tuple[str, ...], also: frozenset[str]) -> str | None:
    """Ask for the features of some examples at once; what is wrong with the answer, by the table."""
    has, body, headers = {*also, *([features.CHAT] if path == CHAT else [])}, dict[str, Any](), dict[str, str]()
    for each in (ALL[name] for name in examples):
        has |= each.has
        for name, value in each.bodies[path].items():
            body[name] = [[5, 6, 7], [5, 6]] if name == "prompt" and "prompt" in body else value
        headers |= each.headers
    start: dict[str, Any] = {"messages": TURNS} if path == CHAT else {"prompt": "hello"}
    answer = http.post(path, json={"model": "tiny", "max_tokens": 3, **start, **body}, headers=headers)
    rows = [row for row in EXCLUSIONS if row.feature in has and has & set(row.others)]
    if not rows and (200 != answer.status_code or "event: error" in answer.text):
        return f"{path} {examples}: goes together: {answer.text}"
    if rows:
        error = answer.json().get("error", {}) if 400 == answer.status_code else {}
        if not any((row.code, True) == (error.get("code"), row.why in error.get("message", "")) for row in rows):
            return f"{path} {examples}: {rows[0].feature} does not go with {rows[0].others}: {answer.text}"
    return None


def _all_wrong(server: Server, pairs: Iterator[tuple[str, ...]], also: frozenset[str] = frozenset()) -> str:
    with server.http() as http:
        return "\n".join(
            wrong for names in pairs for path in (CHAT, TEXT) if all(path in ALL[name].bodies for name in names)
            and (wrong := _wrong(http, path, names, also)) is not None)


def _sampled() -> Iterator[tuple[str, str]]:
    """Examples beside parameters of sampling: those that the table excludes, and a third of the others, in which each
    example and each parameter is. In the soak, all."""
    for row, example in enumerate(EXAMPLES):
        for column, name in enumerate(SAMPLING):
            has = {*ALL[example].has, *ALL[name].has, features.CHAT}
            if WHOLE or (row + column) % 3 == 0 or any(each.feature in has and has & {*each.others}
                                                       for each in EXCLUSIONS):
                yield example, name


@pytest.mark.slow
def test_every_two_features(server: Server) -> None:
    """Those of requests, with each other and with parameters of sampling; each alone; and these all at once."""
    pairs = itertools.chain(((name,) for name in ALL), itertools.combinations(EXAMPLES, 2), _sampled())
    assert "" == _all_wrong(server, pairs)
    free = {row.name for row in PARAMETERS if row.free}
    assert "" == _all_wrong(server, iter([tuple(name for name in SAMPLING if name not in free), tuple(SAMPLING)]))


def test_every_feature_where_texts_are_redacted(redacting: Server) -> None:
    """Each alone, beside the policy's redaction of prompts and answers."""
    also = frozenset({features.REDACTED_PROMPTS, features.REDACTED_ANSWERS})
    assert "" == _all_wrong(redacting, ((name,) for name in ALL), also)


def test_every_feature_of_a_model_that_thinks(thinking: Server) -> None:
    """Each alone, in chats: a text goes on without thoughts."""
    with thinking.http() as http:
        also = frozenset({features.THINKING})
        wrong = [_wrong(http, CHAT, (name,), also) for name in ALL if CHAT in ALL[name].bodies]
    assert {None} == set(wrong)


def test_the_table_names_known_features() -> None:
    """Each feature of an exclusion is one that an example, or the policy, has."""
    known = {features.REDACTED_PROMPTS, features.REDACTED_ANSWERS, features.THINKING, features.CHAT}
    known |= {name for each in ALL.values() for name in each.has}
    assert known >= {name for row in EXCLUSIONS for name in (row.feature, *row.others)}
