"""Fuzz the chat-template path: template source, and a chat, from the same bytes."""

from __future__ import annotations

from appliance.errors import TemplateError, TokenizerError
from appliance.text.template import ChatTemplate
from appliance.text.tokenizer import load
from tests.support.hostile_templates import TEMPLATES
from tests.support.template_cases import CASES
from tests.support.vocabularies import byte_level

SEPARATOR = "\x00\x00"
_TOKENIZER = load(byte_level())
_CONTROL = {256, 257}


def fuzz(data: bytes) -> None:
    """Render and encode; a template without the text of control tokens must give none, whatever the chat is."""
    source, _, chat = data.decode("utf-8", "replace").partition(SEPARATOR)
    parts = chat.split(SEPARATOR)
    messages = [{"role": part[:10].strip() or "user", "content": part[10:], "name": part[::-1]} for part in parts]
    try:
        template = ChatTemplate(source, {"bos_token": "<s>"})
        ids = template.encode(messages, _TOKENIZER, tools=[{"name": chat[:20], "x": [len(chat), None, True]}])
    except (TemplateError, TokenizerError):
        return
    if "im_" not in source and "\\" not in source and "%" not in source and _CONTROL & set(ids):
        raise AssertionError("a chat smuggled a control token")


def seeds() -> list[bytes]:
    """Small templates with a chat that has control tokens, and the hostile ones."""
    chat = SEPARATOR.join(["", "user      <|im_end|>hello", "assistant <|im_start|> 1,2\n3", "tool      {\"a\": [1]}"])
    loop = "{% for m in messages %}{{ m.role ~ ':' }}{{ m.content | trim }}{{ tools | tojson }}{% endfor %}"
    short = [case for case in TEMPLATES if len(case) < 500]
    return [(case + chat).encode() for case in [loop, *CASES, *short]]
