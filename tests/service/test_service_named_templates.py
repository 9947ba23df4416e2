"""A model with a template of its own for requests with tools, against a server that was really booted.

What transformers and llama.cpp do: "tool_use" where a request offers tools, the plain one otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.cli.main import main
from appliance.errors import TemplateError
from appliance.text.template import ChatTemplate
from tests.support import family_models
from tests.support.ggufs import STRING, kv, kv_array
from tests.support.server import Server, write_policy

PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}:"
TOOL_USE = ("{% for t in tools %}({{ t.function.name }}){% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}"
            "{# <tool_call> {\"name\": , \"arguments\": } </tool_call> #};")
NAMED = {"tokenizer.chat_template": PLAIN, "tokenizer.chat_template.tool_use": TOOL_USE,
         "tokenizer.chat_template.rag": "never {{ documents }}"}
TOOLS = [{"type": "function", "function": {"name": "clock", "parameters": {
    "type": "object", "properties": {"zone": {"enum": ["utc", "cet"]}}, "required": ["zone"],
    "additionalProperties": False}}}]
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "what time"}]}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model file with three templates."""
    path = tmp_path_factory.mktemp("named") / "tiny.gguf"
    path.write_bytes(family_models.model("llama", more=(
        kv_array("tokenizer.chat_templates", STRING, ["tool_use", "rag"]),
        *(kv(key, STRING, text) for key, text in NAMED.items()))))
    return path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, file: Path) -> Iterator[Server]:
    """A server of it."""
    policy = write_policy(tmp_path_factory.mktemp("policy"), {"tiny": file}, schema=2, limits="prompt_tokens = 400",
                          model="tokenization = true")
    running = Server(policy, [file]).wait_ready()
    yield running
    running.stop()


def _prompt(server: Server, **more: Any) -> str:
    """The text of a chat's prompt."""
    with server.http() as http:
        told = http.post("/tokenize", json={"model": "tiny", **ASKED, **more}).raise_for_status().json()
        text: str = http.post("/detokenize", json={"model": "tiny", "tokens": told["tokens"][1:]}).json()["prompt"]
    return text.replace("▁", " ").strip()


def test_the_template_follows_the_tools(server: Server) -> None:
    """Of a request, whose history may have calls: what it offers decides, and `none` offers nothing."""
    assert "what time:" == _prompt(server)
    assert "(clock)what time;" == _prompt(server, tools=TOOLS)
    assert "what time:" == _prompt(server, tools=[])
    counts = [server.client().chat.completions.create(
        model="tiny", **ASKED, **more, max_tokens=1).usage.prompt_tokens for more in (
            {}, {"tools": TOOLS, "tool_choice": "none"}, {"tools": TOOLS})]
    assert counts[0] == counts[1] < counts[2]


def test_calls_in_the_form_of_that_template(server: Server) -> None:
    """A forced call is written and read as the template with tools has it."""
    client = server.client()
    found = client.chat.completions.create(model="tiny", **ASKED, tools=TOOLS, tool_choice="required", max_tokens=200,
                                           seed=3, temperature=1)
    [call] = found.choices[0].message.tool_calls
    assert ("clock", True) == (call.function.name, json.loads(call.function.arguments)["zone"] in ("utc", "cet"))
    assert not found.choices[0].message.content


def test_a_policys_template_is_the_only_one() -> None:
    """It takes the place of all that the file has."""
    template = ChatTemplate.from_metadata(NAMED, override="{{ messages[0].content }}!")
    assert template is template.of_request(tools=True)
    assert "tool_use" not in template.source


@pytest.mark.parametrize(("text", "words"), [
    ("{{ tools.nothing.there }}", "no chat can be put into the model's template for requests with tools"),
    ("{% if %}", "chat template, line 1"), (7, "'tokenizer.chat_template.tool_use' is not a string")])
def test_a_template_with_tools_that_fails(text: object, words: str) -> None:
    """The model is refused when it is loaded, not at the first request that has tools."""
    with pytest.raises(TemplateError, match=words):
        ChatTemplate.from_metadata(NAMED | {"tokenizer.chat_template.tool_use": text})


def test_a_blank_one_is_none() -> None:
    """The plain one is used for all."""
    template = ChatTemplate.from_metadata(NAMED | {"tokenizer.chat_template.tool_use": " "})
    assert template is template.of_request(tools=True)


def test_inspect_names_them(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Beside the plain one."""
    assert 0 == main(["model", "inspect", str(file)])
    assert "chat template   yes, and by name: rag, tool_use\n" in capsys.readouterr().out
