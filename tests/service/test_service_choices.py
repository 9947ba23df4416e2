"""Several answers to one request, several prompts, what stands around a prompt, and messages that go on, against a
server that was really booted."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest

from tests.service.test_service_tools import FORCED, PRIVACY, SCHEMAS, TOOLS, WEATHER
from tests.support import openai_schema, synthetic
from tests.support.ggufs import U32, kv
from tests.support.server import Server, write_policy

FILL = {"pre": 300, "suf": 301, "mid": 302}
SEED, CONTEXT = 7, 4096
TEXT: dict[str, Any] = {"model": "tiny", "prompt": "once upon a", "max_tokens": 12, "seed": SEED, "temperature": 1}
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "weather?"}], "max_tokens": 12,
                        "seed": SEED, "temperature": 1}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has tokens to fill in a middle with."""
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    keys = [kv(f"tokenizer.ggml.fim_{name}_token_id", U32, token) for name, token in FILL.items()]
    path.write_bytes(synthetic.model(synthetic.VARIANTS["Q8_0"], CONTEXT, *keys))
    return path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Server]:
    """A server that tells log-probabilities and tokens."""
    policy = write_policy(tmp_path_factory.mktemp("server"), {"tiny": model}, schema=2,
                          model="tokenization = true\nsampling { max_logprobs = 2 }",
                          limits="generation_tokens = 128\nchoices = 12\nconcurrent_requests = 4")
    running = Server(policy, [model]).wait_ready()
    yield running
    running.stop()


def seed_of(number: int, seed: int = SEED) -> int:
    """The documented seed of an answer."""
    if number == 0:
        return seed
    block = b"appliance choice seed v1\0" + seed.to_bytes(8, "little") + number.to_bytes(8, "little")
    return int.from_bytes(hashlib.sha256(block).digest(), "big") >> (256 - 53)


def _post(server: Server, path: str, body: dict[str, Any]) -> Any:
    with server.http() as http:
        answer = http.post(path, json=body)
    assert 200 == answer.status_code, answer.text
    return answer.json()


def _refused(server: Server, path: str, body: dict[str, Any]) -> tuple[str, str]:
    with server.http() as http:
        answer = http.post(path, json=body)
    assert 400 == answer.status_code, answer.text
    error = answer.json()["error"]
    return error["code"], error["param"]


def _texts(server: Server, **more: Any) -> list[dict[str, Any]]:
    """The choices of a completion, without their numbers, which are checked."""
    choices = _post(server, "/v1/completions", {**TEXT, **more})["choices"]
    assert list(range(len(choices))) == [choice.pop("index") for choice in choices]
    return choices


@pytest.mark.parametrize("more", [{}, {"logprobs": 2, "stop": ["a"]}, {"temperature": 0, "max_tokens": 3}])
def test_choices_are_single_answers(server: Server, more: dict[str, Any]) -> None:
    """Each of eight answers is, with all its numbers, the one that its seed gives alone; the prompt counts once."""
    whole = _post(server, "/v1/completions", {**TEXT, **more, "n": 8})
    choices = sorted(whole["choices"], key=lambda choice: choice["index"])
    alone = [_post(server, "/v1/completions", {**TEXT, **more, "seed": seed_of(number)}) for number in range(8)]
    assert [{**each["choices"][0], "index": number} for number, each in enumerate(alone)] == choices
    usage = [each["usage"] for each in alone]
    assert usage[0]["prompt_tokens"] == whole["usage"]["prompt_tokens"]
    assert sum(each["completion_tokens"] for each in usage) == whole["usage"]["completion_tokens"]


def test_chats_have_choices(server: Server) -> None:
    """By the official client: the same property, whole and streamed, with log-probabilities."""
    client, more = server.client().chat.completions, {"logprobs": True, "top_logprobs": 2}
    whole = client.create(**CHAT, **more, n=4)
    openai_schema.check(whole.model_dump(mode="json", exclude_unset=True))
    alone = [client.create(**{**CHAT, "seed": seed_of(number)}, **more).choices[0] for number in range(4)]
    assert [each.message.content for each in alone] == [each.message.content for each in whole.choices]
    assert [each.logprobs for each in alone] == [each.logprobs for each in whole.choices]
    streamed, ends = dict.fromkeys(range(4), ""), {}
    for chunk in client.create(**CHAT, **more, n=4, stream=True):
        openai_schema.check(chunk.model_dump(mode="json", exclude_unset=True), event=True)
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
            ends.update({choice.index: choice.finish_reason} if choice.finish_reason else {})
    assert {number: each.message.content for number, each in enumerate(alone)} == streamed
    assert {number: each.finish_reason for number, each in enumerate(alone)} == ends


@pytest.mark.parametrize("form", ["tools", "structure"])
def test_each_choice_has_its_form(server: Server, form: str) -> None:
    """Calls and structures hold for each answer, and each is what it is alone."""
    more: dict[str, Any] = {**FORCED, "tools": TOOLS} if form == "tools" else {"response_format": {
        "type": "json_schema", "json_schema": {"name": "w", "schema": WEATHER}}}
    asked = {**CHAT, **more, "max_tokens": 128}
    client = server.client().chat.completions
    choices = client.create(**asked, n=3).choices
    for number, choice in enumerate(choices):
        alone = client.create(**{**asked, "seed": seed_of(number)}).choices[0].message
        if form == "tools":
            [call], [own] = choice.message.tool_calls or [], alone.tool_calls or []
            assert isinstance(call, openai.types.chat.ChatCompletionMessageFunctionToolCall)
            jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
            assert call.function == own.function  # type: ignore[union-attr]
        else:
            jsonschema.validate(json.loads(choice.message.content or ""), WEATHER)
            assert alone.content == choice.message.content


def _mean(choice: dict[str, Any]) -> float:
    logprobs: list[float] = choice["logprobs"]["token_logprobs"]
    return sum(logprobs) / len(logprobs)


@pytest.mark.parametrize("told", [True, False])
def test_best_of_tells_the_likeliest(server: Server, told: bool) -> None:
    """Of six answers the two with the highest mean log-probability, best first, also where none are told; all count."""
    asked = {**TEXT, "prompt": ["once upon a", "there was"], "stop": ["a"], **({"logprobs": 1} if told else {})}
    whole = _post(server, "/v1/completions", {**asked, "n": 2, "best_of": 6})
    every = _post(server, "/v1/completions", {**asked, "n": 6, "logprobs": 1})
    expected = [choice for first in (0, 6)
                for choice in sorted(every["choices"][first:first + 6], key=_mean, reverse=True)[:2]]
    assert [choice["text"] for choice in expected] == [choice["text"] for choice in whole["choices"]]
    assert every["usage"] == whole["usage"]
    if told:
        assert [choice["logprobs"] for choice in expected] == [choice["logprobs"] for choice in whole["choices"]]
    assert [0, 1, 2, 3] == [choice["index"] for choice in whole["choices"]]


@pytest.mark.parametrize("prompt", [["once upon a", "b", "there was"], [[1, 300, 301], [1, 5]], [[1, 9]], ["one"]])
def test_lists_of_prompts(server: Server, prompt: list[Any]) -> None:
    """Two answers to each prompt, in order: each prompt has the answers that it has alone."""
    several = _texts(server, prompt=prompt, n=2, logprobs=1)
    assert [choice for each in prompt for choice in _texts(server, prompt=each, n=2, logprobs=1)] == several


def test_streams_of_several_prompts(server: Server) -> None:
    """Events name the choice; each choice's text adds up to the whole answer's."""
    asked = {**TEXT, "prompt": ["once upon a", "there was"], "n": 2}
    texts = dict.fromkeys(range(4), "")
    for chunk in server.client().completions.create(**asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    whole = server.client().completions.create(**asked)
    assert {choice.index: choice.text for choice in whole.choices} == texts


@pytest.mark.parametrize(("prompt", "text"), [([1, 260, 261], "ba ca"), ([261], "ca")])
def test_echo(server: Server, prompt: Any, text: str) -> None:
    """The prompt, then the answer; log-probabilities of both, but for the first token; offsets fit the text."""
    [plain] = _texts(server, prompt=prompt, logprobs=2)
    [echoed] = _texts(server, prompt=prompt, logprobs=2, echo=True)
    assert text + plain["text"] == echoed["text"]
    logs, own = echoed["logprobs"], plain["logprobs"]
    count = len(logs["tokens"]) - len(own["tokens"])
    assert own["token_logprobs"] == logs["token_logprobs"][count:]
    assert (None, None) == (logs["token_logprobs"][0], logs["top_logprobs"][0])
    assert all(value < 0 for value in logs["token_logprobs"][1:])
    starts = logs["text_offset"][:count + 1]
    parts = [text[start:end] for start, end in itertools.pairwise(starts)]
    first = int(logs["tokens"][0] == "<s>")  # which has no text
    assert [""] * first + [token.removeprefix("" if place else " ") for place, token in enumerate(
        logs["tokens"][first:count])] == parts
    assert [len(text) + offset for offset in own["text_offset"]] == logs["text_offset"][count:]


def test_echoes_score_a_prompt(server: Server) -> None:
    """Without an answer: each token has the log-probability that it has as the answer to what stands before it."""
    ids = [1, 300, 305, 310, 7]
    [scored] = _texts(server, prompt=ids, max_tokens=0, echo=True, logprobs=2)
    assert ("length", len(ids)) == (scored["finish_reason"], len(scored["logprobs"]["tokens"]))
    for place in range(1, len(ids)):
        bias = {str(ids[place]): 100}
        [chosen] = _texts(server, prompt=ids[:place], max_tokens=1, logprobs=2, temperature=0, logit_bias=bias)
        for name in ("token_logprobs", "top_logprobs", "tokens"):
            assert chosen["logprobs"][name][0] == scored["logprobs"][name][place]


def test_echoes_of_several_choices_and_streams(server: Server) -> None:
    """Each choice has the prompt and its numbers, whole and streamed."""
    asked = {**TEXT, "echo": True, "logprobs": 1, "n": 3, "prompt": ["once", "a b"]}
    alone = [_texts(server, echo=True, logprobs=1, prompt=prompt, seed=seed_of(number))[0]
             for prompt in asked["prompt"] for number in range(3)]
    assert alone == _texts(server, echo=True, logprobs=1, n=3, prompt=asked["prompt"])
    texts, logs, offsets = dict.fromkeys(range(6), ""), {number: [] for number in range(6)}, {}
    for chunk in server.client().completions.create(**asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            if choice.logprobs is not None:
                logs[choice.index] += choice.logprobs.token_logprobs or []
                offsets.setdefault(choice.index, []).extend(choice.logprobs.text_offset or [])
    assert [each["text"] for each in alone] == list(texts.values())
    assert [each["logprobs"]["token_logprobs"] for each in alone] == list(logs.values())
    assert [each["logprobs"]["text_offset"] for each in alone] == [offsets[number] for number in range(6)]


def test_a_middle_is_filled_in(server: Server) -> None:
    """A suffix makes a prompt of the model's own tokens, in llama.cpp's order."""
    def tokens(text: str) -> list[int]:
        found: list[int] = _post(server, "/tokenize", {"model": "tiny", "prompt": text})["tokens"]
        return found[1:]

    ids = [1, FILL["pre"], *tokens("once upon"), FILL["suf"], *tokens("the end"), FILL["mid"]]
    assert _texts(server, prompt=ids) == _texts(server, prompt="once upon", suffix="the end")
    assert _texts(server, prompt=[ids, ids]) == _texts(server, prompt=["once upon"] * 2, suffix="the end")


def test_a_message_goes_on(server: Server) -> None:
    """By vLLM's names: the prompt ends with what the assistant has said so far, white space and all."""
    prefill = {"role": "assistant", "content": "It is <|im_end|> "}
    chat = {"model": "tiny", "messages": [*CHAT["messages"], prefill]}
    going = {**chat, "continue_final_message": True, "add_generation_prompt": False}
    before = _post(server, "/tokenize", {"model": "tiny", "messages": CHAT["messages"]})["tokens"]
    ids = _post(server, "/tokenize", going)["tokens"]
    text = _post(server, "/detokenize", {"model": "tiny", "tokens": before})["prompt"] + prefill["content"]
    whole = _post(server, "/detokenize", {"model": "tiny", "tokens": ids})["prompt"]
    assert text.replace("\u2581", " ") == whole.replace("\u2581", " ")  # this vocabulary has a space as bytes only
    assert len(ids) < len(_post(server, "/tokenize", chat)["tokens"])
    said = _post(server, "/v1/chat/completions", {**CHAT, **going})["choices"][0]["message"]["content"]
    assert _texts(server, prompt=ids)[0]["text"] == said
    anthropic = {"model": "tiny", "messages": chat["messages"], "max_tokens": 12, "seed": SEED, "temperature": 1}
    [block] = _post(server, "/v1/messages", anthropic)["content"]
    assert said == block["text"]
    counted = _post(server, "/v1/messages/count_tokens", {"model": "tiny", "messages": chat["messages"]})
    assert len(ids) == counted["input_tokens"]


def test_a_chat_without_the_beginning_of_an_answer(server: Server) -> None:
    """`add_generation_prompt` alone leaves the beginning of an answer to the model."""
    asked = {"model": "tiny", "messages": CHAT["messages"]}
    with_it, without = (_post(server, "/tokenize", {**asked, "add_generation_prompt": value})["tokens"]
                        for value in (True, False))
    assert with_it[:len(without)] == without
    assert len(without) < len(with_it)


REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("/v1/completions", {"n": 13}, "invalid_value", "n"), ("/v1/chat/completions", {"n": 13}, "invalid_value", "n"),
    ("/v1/completions", {"best_of": 13}, "invalid_value", "best_of"),
    ("/v1/completions", {"prompt": ["a"] * 13}, "invalid_value", "prompt"),
    ("/v1/completions", {"prompt": ["a"] * 7, "n": 2}, "invalid_value", "n"),
    ("/v1/completions", {"n": 129}, "invalid_value", "n"), ("/v1/completions", {"n": 0}, "invalid_value", "n"),
    ("/v1/completions", {"n": 3, "best_of": 2}, "invalid_value", "best_of"),
    ("/v1/completions", {"best_of": 2, "stream": True}, "invalid_value", "best_of"),
    ("/v1/completions", {"max_tokens": 0}, "invalid_value", "max_tokens"),
    ("/v1/completions", {"echo": True, "suffix": "x"}, "invalid_value", "echo"),
    ("/v1/completions", {"continue_final_message": True}, "unsupported_parameter", "continue_final_message"),
    ("/v1/chat/completions", {"best_of": 2}, "unsupported_parameter", "best_of"),
    ("/v1/chat/completions", {"echo": True}, "unsupported_parameter", "echo"),
    ("/v1/chat/completions", {"suffix": "x"}, "unsupported_parameter", "suffix"),
    ("/v1/chat/completions", {"continue_final_message": True}, "invalid_value", "continue_final_message"),
]


@pytest.mark.parametrize(("path", "more", "code", "param"), REFUSED)
def test_refused_by_name(server: Server, path: str, more: dict[str, Any], code: str, param: str) -> None:
    """What contradicts itself, or is more than the policy allows."""
    assert (code, param) == _refused(server, path, {**(CHAT if "chat" in path else TEXT), **more})


def test_both_at_once_is_refused(server: Server) -> None:
    """A message cannot go on where another one begins."""
    messages = [*CHAT["messages"], {"role": "assistant", "content": "It"}]
    asked = {**CHAT, "messages": messages, "continue_final_message": True}
    assert ("invalid_value", "continue_final_message") == _refused(
        server, "/v1/chat/completions", {**asked, "add_generation_prompt": True})
    assert 1 == len(_post(server, "/v1/chat/completions", asked)["choices"])


@pytest.mark.parametrize(("more", "clamped"), [
    ({"max_tokens": 129}, "128"), ({"max_tokens": 128}, None), ({"n": 4}, None), ({"n": 12, "max_tokens": None}, "32"),
    ({"n": 5, "max_tokens": 128}, "76")])
def test_too_many_tokens_are_clamped(server: Server, more: dict[str, Any], clamped: str | None) -> None:
    """Answers have as many as the policy allows, all together as many as one tenant's requests in progress, of which
    one place of four is kept for the other tenant; a header says so."""
    with server.http() as http:
        answer = http.post("/v1/completions", json={**TEXT, **more, "logit_bias": {"2": -100}})
    assert (200, clamped) == (answer.status_code, answer.headers.get("x-max-tokens-clamped-to"))
    most = int(clamped or more["max_tokens"] if "max_tokens" in more else 12)
    assert most * more.get("n", 1) == answer.json()["usage"]["completion_tokens"]


@pytest.mark.parametrize("schema", [1, 2])
def test_too_many_tokens_may_be_refused(tmp_path: Path, model: Path, schema: int) -> None:
    """As schema 1 does it, which has one answer to a request, too; a model without the tokens fills in no middle."""
    plain = tmp_path / "plain.gguf"
    plain.write_bytes(synthetic.model(synthetic.VARIANTS["Q8_0"]))
    limits = "generation_tokens = 64" + ('\noversized_max_tokens = "refuse"\nchoices = 1' if schema == 2 else "")
    running = Server(write_policy(tmp_path, {"tiny": plain}, schema=schema, limits=limits), [plain]).wait_ready()
    try:
        path = "/v1/completions"
        assert ("generation_length_exceeded", "max_tokens") == _refused(running, path, {**TEXT, "max_tokens": 65})
        assert ("invalid_value", "n") == _refused(running, path, {**TEXT, "n": 2})
        assert ("invalid_value", "prompt") == _refused(running, path, {**TEXT, "prompt": ["a", "b"]})
        assert ("unsupported_parameter", "suffix") == _refused(running, path, {**TEXT, "suffix": "x"})
        assert 1 == len(_texts(running, echo=True))
    finally:
        running.stop()


def test_privacy_holds_for_each_choice(tmp_path: Path, model: Path) -> None:
    """Padded sizes and paced events, rounded counts, quotas by all answers, redacted echoes."""
    policy = write_policy(tmp_path, {"tiny": model}, privacy=PRIVACY, schema=2, limits="tokens_per_minute = 100000")
    running = Server(policy, [model]).wait_ready()
    try:
        with running.http() as http:
            answer = http.post("/v1/completions", json={**TEXT, "n": 3, "prompt": "north and south", "echo": True})
            body = answer.json()
            assert 200 == answer.status_code, body
            assert (0, 0, 0) == (len(answer.content) % 512, *(body["usage"][f"{name}_tokens"] % 16
                                                             for name in ("prompt", "completion")))
            assert 36 <= body["usage"]["completion_tokens"] <= 48
            assert all("north" not in choice["text"] for choice in body["choices"])
            left = int(answer.headers["x-ratelimit-remaining-tokens"])
            assert 100000 - left == -(-body["usage"]["prompt_tokens"] // 16) * 16 + 48
            sizes = []
            with http.stream("POST", "/v1/chat/completions", json={**CHAT, "n": 3, "stream": True}) as stream:
                sizes = [len(data) for data in stream.iter_raw()]
            assert [0] * len(sizes) == [size % 512 for size in sizes]
    finally:
        running.stop()
