"""The Jinja interpreter: equal to Jinja2 feature by feature, and no template runs away with time or memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.errors import TemplateError
from appliance.text.jinja import Template
from appliance.text.jinja.marks import mark, spans_of
from appliance.text.jinja.operators import marked_within, whole
from appliance.text.jinja.values import Budget, Misuse
from tests.support.environment import children_unmeasured
from tests.support.template_cases import CASES, VARIABLES

FOLDER = Path(__file__).parents[1] / "goldens/template"
GOLDENS = json.loads((FOLDER / "language.json").read_text())


def _render(source: str) -> str | None:
    try:
        return Template(source).render(VARIABLES, Budget(100_000, 1_000_000))
    except TemplateError:
        return None


@pytest.mark.filterwarnings("error")
def test_as_jinja2() -> None:
    """Every feature of the language gives what Jinja2 gives, and raises where Jinja2 raises."""
    wrong = [(case, wanted, found) for case, wanted in zip(CASES, GOLDENS, strict=True)
             if wanted != (found := _render(case))]
    assert [] == wrong


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("source", "wanted"), [
    (r"{{ '\d\.\%' }}", r"\d\.\%"), (r"{{ '\101\777\0' }}", "A\u01ff\0"), (r"{{ '\\d\\101\n' }}", "\\d\\101\n"),
    (r"{{ '\é' }}", r"\xe9"), (r"{{ '\x41\u00e9\N{BULLET}' }}", "A\u00e9\u2022")])
def test_escapes_are_read_without_a_warning(source: str, wanted: str) -> None:
    """As Jinja2 reads them; Python warns of those that a later version will refuse."""
    assert wanted == Template(source).render({}, Budget(1000, 10_000))


@pytest.mark.parametrize(("path", "wanted"), [
    ("1", "b,2"), ("0", "a,1"), ("x", ","), ("0.0", "a,"), ("1.x", ","), ("7", ","), ("12345678", ","),
    ("123456789", ","), ("-1", ",")])
def test_paths_of_attributes_that_are_numbers(path: str, wanted: str) -> None:
    """An item by its place, of a string or a list; any other name, and a place beyond the end, is undefined."""
    source = "{{ items | map(attribute=path) | join(',') }}"
    assert wanted == Template(source).render({"items": ["ab", [1, 2]], "path": path}, Budget(1000, 10_000))


@pytest.mark.slow
def test_hostile_templates() -> None:
    """Templates that try to run away end with an error, in bounded time and memory that the kernel enforces."""
    with children_unmeasured():
        done = subprocess.run([sys.executable, "-m", "tests.support.hostile_templates"], cwd=FOLDER.parents[2],
                              check=False, capture_output=True, text=True)
    assert (0, "") == (done.returncode, done.stderr[-500:])
    figures = json.loads(done.stdout)
    assert figures["seconds"] < 6
    assert figures["kilobytes"] < 200_000


MALFORMED = [
    "{{", "{%", "{#", "{% if", "{% if x %}", "{{ }}", "{% %}", "{{ 1 1 }}", "{{ . }}", "{% endif %}",
    "{% else %}", "{% for %}", "{% for x %}{% endfor %}", "{% for 1 in x %}{% endfor %}", "{% set %}",
    "{% set 1 = 2 %}", "{{ 'a }}", "{% set a.b.c = 1 %}", "{% macro %}", "{% macro f(1) %}{% endmacro %}",
    "{% break %}", "{% if x %}{% endfor %}", "{{ (1 }}", "{{ 1) }}", "{{ [1 }}", "{{ {1} }}", "{{ {'a' 1} }}",
    "{{ a[1:2:3:4] }}", "{{ a[] }}", "{{ f(a=1, 2) }}", "{{ f(*a, 1) }}", "{{ f(*a, *b) }}", "{{ f(*) }}",
    "{{ x | nope }}", "{{ x is nope }}", "{{ x | }}",
    "{{ x is }}", "{{ a ? b }}", "{% raw %}", "{{ '\\ud800' }}", "{{ '\\x' }}", "{{ 99999999999999999999 }}",
    "{{ not }}", "{{ a if }}", "{{ if }}", "{% call x %}{% endcall %}", "{% for x in y recursive %}{% endfor %}",
    "{% include 'a' %}", "{% block a %}{% endblock %}", "{% do x %}", "{% call f() %}{% endcall %}",
    # of Jinja, but of no chat template
    "{{ f(**a) }}", "{{ 2 ** 3 }}", "{{ x | batch(2) }}", "{{ x | format(1) }}", "{{ x | round }}",
    "{{ x is callable }}",
]


@pytest.mark.parametrize("source", MALFORMED)
def test_malformed_templates(source: str) -> None:
    """A malformed template is refused when it is read, with its line."""
    with pytest.raises(TemplateError, match="line 2:"):
        Template("\n" + source)


def test_faults_name_their_line() -> None:
    """A fault while rendering names the line of the statement."""
    for source in ("\n\n{{ missing.x }}", "\n\n{% set a = 1 / 0 %}", "\n\n{% for i in 5 %}{% endfor %}",
                   "\n\n{% if 'a' < 1 %}{% endif %}", "\n\n{% set x.y = 1 %}", "\n\n{% for a, b in [1] %}{% endfor %}",
                   "{% macro f() %}\n\n{{ 'a'.partition('b') }}\n{% endmacro %}\n{{ f() }}", "\n\n{{ [1].pop() }}",
                   "\n\n{{ '{:>9}'.format(1) }}"):
        with pytest.raises(TemplateError, match="line 3"):
            Template(source).render({}, Budget(1000, 1000))


def test_printing_an_object_shows_nothing_in_it() -> None:
    """A namespace, loop, macro or function shows no text that it holds: it would come out without its mark."""
    sources = ["{{ [namespace(y=x)] }}", "{{ '{}'.format(namespace(y=x)) }}", "{{ [namespace(y=x)] | string }}",
               "{% for i in [x] %}{{ loop }}{{ [loop] }}{{ '{}'.format(loop) }}{% endfor %}",
               "{% macro f(a=x) %}{{ x }}{% endmacro %}{{ [f] }}{{ f ~ '' }}{{ f }}", "{{ [x.strip] }}"]
    for source in sources:
        assert "secret" not in Template(source).render({"x": mark("secret")}, Budget(1000, 10_000)), source


def test_spans_follow_characters() -> None:
    """Marks stay on the very characters that came from outside."""
    cases = [
        ("{{ 'ab' + x | trim + 'cd' }}", "ab[hi]cd"), ("{{ (x ~ 'z')[1:] }}", "[hi ]z"),
        ("{{ x.split('i')[0] }}|", "[ h]|"), ("{{ 'a,b' | replace(',', x) }}", "a[ hi ]b"),
        ("{{ x | upper ~ 'a' }}", "[ HI ]a"), ("{{ ['a', x, 'b'] | join('-') }}", "a-[ hi ]-b"),
        ("{{ '<' ~ x.strip() ~ '>' }}", "<[hi]>"), ("{{ ('a\n' ~ x) | indent(2) }}", "a\n  [ hi ]"),
        ("{{ '{}|{}'.format(x, 1) }}", "[ hi ]|1"), ("{{ (x ~ 'q').split('i')[1] }}", "[ ]q"),
        ("{{ x * 2 }}", "[ hi  hi ]"), ("{{ 'a'.join([x, x]) }}", "[ hi ]a[ hi ]"),
        ("""{{ (('{"k": "' ~ x ~ '"}') | from_json).k ~ 'z' }}""", "[ hi ]z"),
        ("""{% for k in ('{"k": "' ~ x ~ '"}') | from_json %}{{ k }}{% endfor %}""", "[k]"),
        ("""{{ (('["' ~ x ~ '", 1]') | from_json)[0] }}z""", "[ hi ]z"),
        ("""{{ ('{"k": 1}' | from_json).k ~ 'z' }}""", "1z"),
    ]
    for source, wanted in cases:
        text = Template(source).render({"x": mark(" hi ")}, Budget(1000, 10_000))
        shown, at = "", 0
        for start, end in spans_of(text):
            shown += f"{text[at:start]}[{text[start:end]}]"
            at = end
        assert wanted == shown + text[at:], source


@pytest.mark.parametrize("source", [
    "{{ 'ab' * 60000 }}", "{{ 60000 * 'ab' }}", "{% set x = [1, 2] * 60000 %}", "{% set x = [1] * 5 * 5 * 5 * 5000 %}"])
def test_what_is_repeated_counts_in_full(source: str) -> None:
    """A repetition is refused before it is made: its size is known."""
    with pytest.raises(TemplateError, match="makes too much text"):
        Template(source).render({}, Budget(100_000, 100_000))
    assert "abab" == Template("{{ 'ab' * 2 }}").render({}, Budget(100, 100))


def test_whole_numbers_and_values_from_outside() -> None:
    """A number outside its bounds and a value of another kind are refused alike; numbers from outside stay as they are.
    """
    for value in (0, 4, "2", None):
        with pytest.raises(Misuse, match="needs a whole number from 1 to 3"):
            whole(value, "width", 1, 3)
    assert [whole(value, "width", 1, 3) for value in (1, 3)] == [1, 3]
    assert [marked_within(value) for value in (7, None, True, [1.5])] == [7, None, True, [1.5]]
