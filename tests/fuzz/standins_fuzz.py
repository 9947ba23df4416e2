"""Fuzz target: a template and a chat from the same bytes. With stand-ins for its texts, the template writes what it
writes of the texts, or says that it needs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from appliance.errors import TemplateError
from appliance.text.jinja.marks import own_of
from appliance.text.jinja.standins import BLANKS, FIRST, StandIns, TextNeeded, holds
from appliance.text.jinja.values import EXHAUSTED
from appliance.text.template import ChatTemplate
from tests.fuzz import template_fuzz

SEPARATOR = template_fuzz.SEPARATOR
_BLANKS = "".join(BLANKS)
SOURCES = (
    "{{ messages[0].content.count('') }}", "{{ messages[0].content.startswith('') }}",
    "{{ messages[0].content | length > 0 }}", "{{ messages[0].content | length == 1 }}",
    "{{ 0 < messages[0].content | length <= 3 }}", "{{ messages | length == 0 }}",
    "{{ messages[0].content | upper }}", "{{ messages[0].content | length }}", "{{ messages[0].content[0] }}",
    "{% for c in messages[0].content %}{{ c }}-{% endfor %}", "{{ messages[0].content[1:] }}",
    "{{ messages[0].content | tojson }}", "{{ messages | tojson }}", "{{ messages[0] }}",
    "{{ messages[0].content.split() }}", "{{ messages[0].content.splitlines() | join('/') }}",
    "{{ messages[0].content.find(messages[0].role) }}", "{{ {messages[0].content: 1} | tojson }}",
    "{{ messages[0].content in {'abc': 1} }}", "{{ {'abc': 1}[messages[0].content] }}",
    "{{ messages[0].content < 'b' }}", "{{ messages | map(attribute='content') | sort | join }}",
    "{{ messages | map(attribute='content') | unique | join }}", "{{ messages[0].content | reverse }}",
    "{{ messages[0].content | indent }}", "{{ messages[0].content.strip('abc') }}",
    "{{ messages[0].content | int }}", "{{ messages | map(attribute='content.0') | join }}",
    "{{ 'abcdef'.replace(messages[0].content, 'x') }}", "{{ messages[0].content.isdigit() }}",
    "{{ messages[0].content.format(1) }}", "{{ messages[0].content | first }}",
    "{{ messages[0].content.startswith('abc') }}", "{{ ('ab' in messages[0].content) }}",
    "{{ messages[0].content == 'abc' }}", "{{ messages[0].content != 'abc' }}",
    "{{ messages[0].content in ['abc', 'd'] }}", "{{ messages[0].content.split('b') }}",
    "{{ messages[0].content.replace('b', 'x') }}", "{{ messages[0].content.count('b') }}",
    "{{ ('x' + messages[0].content + 'y').find('xa') }}", "{{ (messages[0].content + 'y').find('y') }}",
    "{{ 'ca' in messages[0].content + messages[0].content }}",
    "{{ ('a' ~ messages[0].content).startswith('aabc') }}",
    "{{ messages | selectattr('content', 'equalto', 'abc') | list | length }}",
    "{{ messages | map('upper') | join }}", "{{ messages[0].content.endswith(('bc', 'q')) }}",
    "{{ messages[0].content | replace('c', '') }}", "{{ messages[0] == {'role': 'user', 'content': 'abc'} }}",
    "{{ messages | map(attribute='content') | list }}", "{{ messages | groupby('content') }}",
    "{{ messages[0].content | default('x') | trim | string | safe }}")
"""Templates that ask a text something."""


class Texts(StandIns):
    """Texts by Python's own search."""

    def __init__(self) -> None:
        super().__init__()
        self.texts = list[str]()

    def stand_in(self, text: str) -> str:
        """What a text is in a request."""
        core = text.strip(_BLANKS)
        if not core or core != core.strip():
            return text
        self.texts.append(core)
        return text.replace(core, chr(FIRST + len(self.texts) - 1), 1)

    def bytes_of(self, number: int) -> memoryview:
        return memoryview(self.texts[number].encode())

    def settle(self) -> None:
        if any(word in text for word in self.sought for text in self.texts):
            raise TextNeeded


def _written(template: ChatTemplate, messages: Sequence[dict[str, Any]], texts: Texts | None) -> str | TemplateError:
    try:
        return template.render(messages, tools=[{"name": "f", "x": [1, None, True]}], stand_ins=texts)
    except TemplateError as error:
        return error


def fuzz(data: bytes) -> None:
    """Render both ways."""
    source, _, chat = data.decode("utf-8", "replace").partition(SEPARATOR)
    if holds(source) or holds(chat):
        return
    parts = [(part[:10].strip() or "user", part[10:]) for part in chat.split(SEPARATOR)]
    texts = Texts()
    try:
        template = ChatTemplate(source, {"bos_token": "<s>"})
        found = _written(template, [{"role": role, "content": texts.stand_in(text)} for role, text in parts], texts)
        texts.settle()
    except (TemplateError, TextNeeded):
        return
    wanted = _written(template, [{"role": role, "content": text} for role, text in parts], None)
    if EXHAUSTED in (getattr(found, "code", None), getattr(wanted, "code", None)):
        return
    if isinstance(found, str) and isinstance(wanted, str):
        assert (texts.lift(found), own_of(found)) == (wanted, own_of(wanted))
    else:
        assert type(found) is type(wanted)


def seeds() -> list[bytes]:
    """Those of templates, and each operation on a text."""
    chat = SEPARATOR.join(["", "user      abc", "assistant  x{0}y\n", "user      12 <think>"])
    return [*template_fuzz.seeds(), *((source + chat).encode() for source in SOURCES)]
