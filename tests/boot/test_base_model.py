"""A base model, which has no chat template: it boots, continues prompts and says that it takes no chats."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from appliance.cli.main import main
from appliance.text.template import ChatTemplate
from tests.support import forked
from tests.support.environment import unmeasured
from tests.support.server import Server, write_policy

MESSAGES: Any = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A policy that says nothing about templates, for a model that has none."""
    path = write_policy(tmp_path_factory.mktemp("base"), {"tiny": tiny_model})
    path.write_text(path.read_text().replace('chat_template_fallback = "chatml"', ""))
    return path


@pytest.fixture(scope="module")
def base(policy: Path, tiny_model: Path) -> Iterator[Server]:
    """A server of the base model."""
    running = Server(policy, [tiny_model]).wait_ready()
    yield running
    running.stop()


def test_it_continues_prompts(base: Server) -> None:
    """Text completions work, whole and streamed."""
    client, fixed = base.client(), {"model": "tiny", "prompt": "abc", "max_tokens": 8, "seed": 3}
    whole = client.completions.create(**fixed)
    assert ("length", 8) == (whole.choices[0].finish_reason, whole.usage.completion_tokens)
    assert whole.choices[0].text == "".join(
        event.choices[0].text for event in client.completions.create(**fixed, stream=True))


@pytest.mark.parametrize("more", [{}, {"stream": True}, {"extra_body": {"chat_template_kwargs": {"x": 1}}}])
def test_chats_are_refused_by_name(base: Server, more: dict[str, Any]) -> None:
    """A chat gets a code of its own, which names the endpoint that works, and is recorded."""
    with pytest.raises(openai.BadRequestError) as caught:
        base.client().chat.completions.create(model="tiny", messages=MESSAGES, **more)
    assert ("no_chat_template", "model") == (caught.value.code, caught.value.param)
    assert "model tiny has no chat template" in caught.value.message
    assert "/v1/completions" in caught.value.message
    assert "no_chat_template" == base.audited(caught.value.response.headers["x-request-id"])["code"]


def test_it_says_so_of_itself(base: Server) -> None:
    """The list of models and the boot report tell that it takes no chats."""
    with base.http() as http:
        listed = http.get("/v1/models").json()["data"]
        assert [("tiny", False)] == [(each["id"], each["chat_template"]) for each in listed]
        assert http.get("/v1/models/tiny").json() == listed[0]
        [step] = [step for step in http.get("/health").json()["boot"] if step["step"] == "models"]
    assert "no chat template: completions only" in step["detail"]


def test_the_console_says_so(policy: Path, tiny_model: Path) -> None:
    """Who starts the service reads that there are no chats, and is shown a question that works."""
    with forked.piped(["serve", str(policy), "--listen-port", "0", "--models", str(tiny_model.parent)],
                      unmeasured()) as it:
        assert it.stderr is not None
        told = []
        while not told or not told[-1].startswith(("    print", "error")):
            told.append(it.stderr.readline().decode())
        it.terminate()
    assert "  no chats     tiny has no chat template: it continues prompts only\n" in told
    assert 'client.completions.create(model="tiny"' in "".join(told)
    assert "chat.completions" not in "".join(told)


def test_a_chat_model_says_so_too(service: Server) -> None:
    """A model that takes chats is listed as one."""
    with service.http() as http:
        assert [True] == [each["chat_template"] for each in http.get("/v1/models").json()["data"]]


def test_infer_continues_a_prompt(policy: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`infer --raw` runs a base model; without it the refusal comes before the model is loaded, and says so."""
    arguments = ["infer", str(policy), "--models", str(tiny_model.parent), "--threads", "1", "--prompt", "abc"]
    assert 0 == main([*arguments, "--raw", "--max-tokens", "4", "--json"])
    assert 4 == len(json.loads(capsys.readouterr().out)["tokens"])
    assert 2 == main(arguments)
    said = capsys.readouterr().err
    assert "error[no-chat-template]: model tiny: has no chat template" in said
    assert "--raw" in said


def test_an_empty_template_is_none() -> None:
    """A blank chat template is as good as none, and a list of named ones without a default."""
    for metadata in ({}, {"tokenizer.chat_template": " \n"}, {"tokenizer.chat_template.tool_use": "{{ tools }}"}):
        assert ChatTemplate.of_model(metadata) is None
        assert "<|im_start|>" in ChatTemplate.from_metadata(metadata, fallback="chatml").source


BYTE = 3 + 0xC3  # the token of the first byte of two of a character


@pytest.mark.parametrize(("tokens", "text"), [(1, ""), (3, "\ufffd\ufffd")])
def test_an_answer_that_ends_within_a_character(base: Server, tokens: int, text: str) -> None:
    """The incomplete character is left out, whole or streamed; wrong bytes within an answer stay U+FFFD."""
    asked: dict[str, Any] = {"model": "tiny", "prompt": "abc", "max_tokens": tokens, "temperature": 0,
                             "logit_bias": {str(BYTE): 100}}
    client = base.client()
    whole = client.completions.create(**asked)
    assert (text, "length", tokens) == (whole.choices[0].text, whole.choices[0].finish_reason,
                                        whole.usage.completion_tokens)
    assert text == "".join(event.choices[0].text for event in client.completions.create(**asked, stream=True))


@pytest.mark.parametrize("name", ["message", "role", "content", "for", "user", "endfor", "messages"])
def test_names_that_the_template_uses_otherwise(service: Server, name: str) -> None:
    """A variable of a chat's template that could change nothing is named: a loop's variable, an attribute, a word."""
    raw = service.client().chat.completions.with_raw_response.create(
        model="tiny", messages=MESSAGES, max_tokens=1, extra_body={"chat_template_kwargs": {name: "x"}})
    assert f"chat_template_kwargs.{name}" == raw.headers["appliance-ignored"]


def test_log_probabilities_of_an_incomplete_character(service: Server) -> None:
    """The bytes of the tokens that were left out of a chat's text stand in its log-probabilities."""
    asked: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "max_tokens": 2, "temperature": 0,
                             "logit_bias": {str(BYTE): 100}, "logprobs": True}
    whole = service.client().chat.completions.create(**asked).choices[0]
    assert "\ufffd" == whole.message.content
    assert [[0xC3], [0xC3]] == [each.bytes for each in whole.logprobs.content]
    streamed = [event.choices[0] for event in service.client().chat.completions.create(**asked, stream=True)]
    assert "\ufffd" == "".join(each.delta.content or "" for each in streamed)
    assert 2 == sum(len(each.logprobs.content) for each in streamed if each.logprobs)
