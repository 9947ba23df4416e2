"""Chat templates that read what a request does not have: tools, documents, functions, dates, and variables by name.

The expected prompts are what Jinja2 3.1 gives with `tools` and `documents` none, as Hugging Face's
`apply_chat_template` passes them; with these undefined where that raises; and with an undefined value that text can be
joined to where that raises, too.
"""

from __future__ import annotations

import pytest

from appliance.errors import TemplateError
from appliance.text.template import ChatTemplate
from tests.support.template_absent_cases import CASES

ASKED = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(("source", "wanted"), CASES)
def test_a_request_without_tools(source: str, wanted: str) -> None:
    """A model whose template reads tools, functions or documents without a test is loaded, and chats without them."""
    template = ChatTemplate.from_metadata({"tokenizer.chat_template": source})
    assert wanted == template.render(ASKED)


def test_tools_that_a_request_has() -> None:
    """Tools that are given stand in the prompt, also where documents and functions are absent."""
    source = ("{% for t in tools %}{{ t.name }}{% endfor %}{% for d in documents %}{{ d }}{% endfor %}"
              "{{ 'f' + functions }}")
    assert "gf" == ChatTemplate(source, {}).render(ASKED, tools=[{"name": "g"}])
    assert "f" == ChatTemplate(source, {}).render(ASKED)


def test_what_a_template_asks_of_no_request_fails() -> None:
    """An attribute of an undefined name is an error, as in Jinja2: the line at fault is named."""
    with pytest.raises(TemplateError, match="line 2: 'functions', which is undefined, has no attribute 'all'"):
        ChatTemplate.from_metadata({"tokenizer.chat_template": "{{ messages[0].content }}\n{{ functions.all }}"})


SETS = """{% if think is not defined %}{% set think = false %}{% endif %}
{%- if style %}{% set shown = style %}{% else %}{% set shown = 'plain' %}{% endif %}
{%- set ns = namespace(count=0) %}
{%- macro turn(message, depth=base) %}{{ message.content }}{{ depth }}{{ late }}{{ inner }}{% endmacro %}
{%- macro told() %}{% if effort is not defined %}{% set effort = 'low' %}{% endif %}{{ effort }}{% set own = 1 %}
{{- own }}{{ other }}{% endmacro %}{% macro more() %}{% set other = 2 %}{{ told() }}{% endmacro %}
{%- set late = 'x' %}
{%- for message in messages if message.role != hidden %}{% set ns.count = ns.count + 1 %}{{ turn(message) }}
{{- loop.index }}
{%- set once = loop.first %}{{ once }}{% endfor %}
{%- with width = room %}{{ width }}{% endwith %}{% set body %}{{ wrapped }}{% endset %}{{ body }}
{%- for key, value in extra.items() if value %}{{ key }}{% endfor %}{{ shown }}{{ think }} plain words
{{- {'a': picked}['a'] }}
{%- set early = first_seen %}{% set first_seen = 1 %}{{ x | default(standby) }}{{ a.b[c] }}{{ once }}"""


@pytest.mark.parametrize(("name", "wanted"), [
    # read before the template sets it, or set by one branch only
    ("think", True), ("style", True), ("base", True), ("inner", True), ("hidden", True), ("room", True),
    ("wrapped", True), ("extra", True), ("picked", True), ("first_seen", True), ("x", True), ("standby", True),
    ("a", True), ("c", True), ("once", True),
    # set by the template whatever is given: by `set`, a macro, a loop, `with`, a parameter
    ("shown", False), ("ns", False), ("turn", False), ("message", False), ("depth", False), ("late", False),
    ("own", False), ("effort", True), ("other", True),
    ("loop", False), ("width", False), ("body", False), ("key", False), ("value", False), ("early", False),
    # attributes, keys, filters, tests, words of the text, and what is ours
    ("content", False), ("role", False), ("count", False), ("first", False), ("b", False), ("default", False),
    ("defined", False), ("plain", False), ("words", False), ("messages", False), ("namespace", False),
    ("items", False), ("tools", False), ("the body", False), ("", False)])
def test_variables_that_a_template_reads(name: str, wanted: bool) -> None:
    """A variable may be given by name only if it could change the prompt; a name that the template uses otherwise is
    not such a variable."""
    assert wanted == ChatTemplate(SETS, {}).takes(name)


def test_a_chain_of_a_thousand_operators() -> None:
    """The free names of long expressions are found without recursion."""
    source = "{{ messages[0].content " + "".join(f"~ v{index}" for index in range(700)) + " }}"
    assert ChatTemplate(source, {}).takes("v699")
