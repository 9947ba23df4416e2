"""Templates that try to run away with time or memory, or to reach what is not theirs.

Run as a module, it renders all of them within limits that the kernel enforces, and prints the worst figures:
`python -m tests.support.hostile_templates`. A crash, a hang or a memory blow-up ends the process otherwise.
"""

from __future__ import annotations

import json
import resource
import time

from appliance.errors import TemplateError
from appliance.text.template import ChatTemplate
from tests.support.extent import some

MEMORY = 1 << 30  # bytes of address space
SECONDS = 120  # of processor time for all

_DOUBLE = "{% set a = namespace(x=[1], y=[1]) %}{% for i in range(100) %}{% set a.x = [a.x, a.x] %}" \
    "{% set a.y = [a.y, a.y] %}{% endfor %}"
_TUPLE = "{% set a = namespace(x=(1,)) %}{% for i in range(100) %}{% set a.x = (a.x, a.x) %}{% endfor %}"
_MEGABYTE = "{% set x = 'a' * 1000000 %}"
_MANY = "{% for i in range(100000) %}"
_TWICE = "{% set n = namespace(x=1) %}" + "".join(
    f"{{% set m{i} = namespace(x=[n, n]) %}}{{% set n = m{i} %}}" for i in range(60))
_KEYS = "{% set w = '" + ",".join(f"{chr(0x10000 + i)}1" for i in range(40000)) + "'.split(',') %}"
_LONG = "{% set x = 'a' * 200000 %}{% set y = 'a' * 50000 ~ 'b' ~ 'a' * 50000 %}"

TEMPLATES = [
    # text that grows
    "{{ 'a' * 1000000000 }}", "{{ ['a' * 1000000] * 1000000 }}",
    "{{ ('a' * 100000) | replace('a', 'b' * 100000) }}",
    "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
    "{% set n = namespace(x='aaaaaaaa') %}" + _MANY + "{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}{% endfor %}",
    "{% macro f(x) %}{{ x }}{{ x }}{% endmacro %}{% set n = namespace(x='aa') %}" + _MANY
    + "{% set n.x = f(n.x) %}{% endfor %}",
    "{{ '{:1000000000}'.format(1) }}", "{{ '{0:{1}}'.format(1, 1000000000) }}",
    "{{ ('{0}' * 10000).format('a' * 10000) }}",
    "{{ 'x' | indent(1000000000) }}", "{{ ('\\n' * 100000) | indent(1000, true, true) }}",
    "{{ {'a': [1]} | tojson(indent=1000000000) }}",
    "{{ ('x' * 1000000) | replace('', 'y' * 1000) }}",
    _MEGABYTE + "{{ x.join(x) }}", _MEGABYTE + "{{ x | list }}", _MEGABYTE + "{{ x | map('upper') | list }}",
    _MEGABYTE + _MANY + "{{ x }}{% endfor %}",
    "a" * 1000 + _MANY + "b" * 1000 + "{% endfor %}", _MEGABYTE + "{{ x.split('a') }}",
    _MEGABYTE + "{{ (x ~ '\\n').splitlines() }}",
    # lists and numbers that grow
    "{{ range(1000000000) | list }}", "{{ [0] * 1000000000 }}",
    "{% set n = namespace(x=[1]) %}{% for i in range(100) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "{% set n = namespace(x=10) %}" + _MANY + "{% set n.x = n.x * n.x %}{% endfor %}",
    "{{ ('9' * 100000) | int }}", "{{ ('9' * 1000) | int }}",
    # loops and recursion
    _MANY + _MANY + _MANY + "{% endfor %}" * 3, "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
    "{% macro f(g) %}{{ g(g) }}{% endmacro %}{{ f(f) }}",
    _MEGABYTE + _MANY + "{% set y = x | trim %}{% endfor %}", _MEGABYTE + _MANY + "{{ 'b' in x }}{% endfor %}",
    _MEGABYTE + _MANY + "{{ x == x ~ '' }}{% endfor %}", _MEGABYTE + _MANY + "{{ x.find('b') }}{% endfor %}",
    _MEGABYTE + _MANY + "{{ x.isdigit() }}{% endfor %}",
    "{% set b = ('a' * 1000) ~ 'b' ~ ('a' * 1000) %}" + _MEGABYTE + "{% for i in range(100) %}{{ b in x }}{% endfor %}",
    # values that contain one value many times over
    _DOUBLE + "{{ a.x }}", _DOUBLE + "{{ a.x | tojson }}", _DOUBLE + "{{ a.x == a.y }}",
    _DOUBLE + "{{ a.x in [a.y] }}", _DOUBLE + "{{ [a.y] | select('eq', a.x) }}",
    _DOUBLE + "{{ [a.x, a.y] | sort }}", _DOUBLE + "{{ [a.x, a.y] | unique }}", _DOUBLE + "{{ a.x < a.y }}",
    _TUPLE + "{{ {a.x: 1} }}", _TUPLE + "{{ '{}'.format(a.x) }}",
    _TUPLE + "{{ dict([[a.x, 1]]) }}", _TUPLE + "{{ [a.x] | unique }}", _TUPLE + "{{ {}.get(a.x) }}",
    _TUPLE + "{{ 'a'.startswith(a.x) }}",
    "{% set n = namespace(x=[1]) %}{% for i in range(90000) %}{% set n.x = [n.x] %}{% endfor %}{{ n.x }}",
    "{% set n = namespace() %}{% set n.x = [n] %}{{ n.x }}{{ n.x == n.x }}{{ n.x | tojson }}",
    # what printing or searching would walk in secret
    _TWICE + "{{ n ~ '' }}", _TWICE + "{{ '{}'.format(n.x) }}", _TWICE + "{{ [n] }}", _TWICE + "{{ n | string }}",
    "{% macro f() %}" + "{{ 1 }}" * 10000 + "{% endmacro %}{% for i in range(10000) %}{{ f ~ '' }}{% endfor %}",
    _LONG + "{% for i in range(1000) %}{{ x.find(y) }}{% endfor %}",
    _LONG + "{% for i in range(1000) %}{{ x.count(y) }}{% endfor %}",
    _LONG + "{{ x.rsplit(y) | length }}" * 9, _LONG + "{{ x.split(y) | length }}" * 9,
    "{% set x = 'a' * 400000 %}{% set y = 'b' * 400000 ~ 'a' %}{{ x.strip(y) }}{{ x | trim(y) }}",
    "{% set x = ['a' * 100000 ~ 'b', 'a' * 100000 ~ 'c'] * 1000 %}{{ (x | sort) | length }}",
    "{% set x = ['a' * 100000 ~ 'b', 'a' * 100000 ~ 'c'] * 1000 %}{{ (x | sort(case_sensitive=true)) | length }}",
    "{% set x = ['a' * 100000 ~ 'b', 'a' * 100000 ~ 'c'] * 1000 %}{{ (x | unique) | length }}",
    "{% set p = 'a' * 1000000 %}{{ ([{}] * 50000) | map(attribute=p) | list | length }}",
    _KEYS + "{% set x = dict(w, y=1) %}{% set z = dict(w, z=1) %}" + _MANY + "{{ x == z }}{% endfor %}",
    "{% set x = '{0}' * 20000 %}" + _MANY + "{{ x.format('') }}{% endfor %}",
    "{% set x = (messages[0].content * 4000) | list | join('-') %}" + _MANY + "{{ x[i] }}{% endfor %}",
    # deep or long source
    "{{ " + "(" * 50000 + ")" * 50000 + " }}", "{{ " + "-" * 100000 + "1 }}", "{{ " + "not " * 50000 + "1 }}",
    "{{ " + "1 + " * 50000 + "1 }}",
    "{{ x" + " | trim" * 30000 + " }}", "{{ x" + ".a" * 80000 + " }}", "{{ x" + "[0]" * 60000 + " }}",
    "{{ x" + "()" * 80000 + " }}",
    "{{ 1" + " if 1 else 1" * 15000 + " }}", "{{ 1" + " and 1" * 30000 + " }}",
    "{{ 1" + " < 2" * 50000 + " }}", "{{ " + "[" * 100000 + " }}",
    "{{ " + "{'a':" * 40000 + " }}", "{% if x %}" * 10000 + "{% endif %}" * 10000, "{% for x in y %}" * 8000,
    "{{ 1 is " + "not " * 50000 + " }}",
    "{{ f(" * 50000, "x" * 300000, "{% set x = " + "1, " * 60000 + " %}{{ x }}", "{#" * 100000,
    "{% raw %}" * 20000, "\n" * 200000 + "{{", "{{" * 100000,
    # what is not theirs
    "{{ ''.__class__ }}{{ ''['__class__'].__mro__ }}", "{{ range.__globals__ }}",
    "{{ '{0.__class__}'.format(1) }}", "{{ '{0[0]}'.format([1]) }}",
    "{{ messages.append(1) }}", "{{ messages[0].update({}) }}",
    "{{ self }}{{ loop }}{{ caller }}{{ cycler }}{{ lipsum }}", "{% include 'x' %}",
    "{% import 'x' as y %}", "{% extends 'x' %}", "{% from 'a' import b %}", "{% block x %}{% endblock %}",
    "{{ strftime_now('%1000000000d') }}",
    "{{ strftime_now(messages[0].content) }}", "{{ namespace.call }}{{ dict.call }}",
    "{{ (1).real }}{{ (1.5).hex() }}", "{{ ''.encode() }}", "{{ ''.format_map({}) }}",
]


def main() -> None:
    """Render them; print the longest time and the growth in memory."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    longest = 0.0
    for source in some(TEMPLATES, 55):  # neighbours are of one kind
        began = time.process_time()
        try:
            ChatTemplate(source, {}).render([{"role": "user", "content": "SECRET"}])
        except TemplateError as error:
            if "SECRET" in str(error) or len(str(error)) > 2000:
                raise SystemExit(f"an error tells too much: {source[:80]}") from None
        longest = max(longest, time.process_time() - began)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(json.dumps({"templates": len(TEMPLATES), "seconds": longest, "kilobytes": grown}))


if __name__ == "__main__":
    main()
