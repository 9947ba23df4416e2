"""Templates that read what a request does not have, and the prompt of one user's "hi": (source, prompt)."""

from __future__ import annotations

_SAY = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"

CASES = [(source + _SAY, wanted + "<user>hi") for source, wanted in [
    # none, as Hugging Face passes it: tests and output tell it from an undefined name
    ("{% if tools is not none %}T{% endif %}", ""), ("{% if tools is none %}N{% endif %}", "N"),
    ("{% if not tools is defined %}{% set tools = none %}{% endif %}{% if tools is not none %}T{% endif %}", ""),
    ("{% if tools is defined %}D{% endif %}", "D"), ("{{ tools }}", "None"), ("{{ tools | tojson }}", "null"),
    ("{% if tools is defined and tools %}T{% else %}-{% endif %}", "-"), ("{% if tools %}T{% endif %}", ""),
    ("{{ tools == none }}{{ documents != none }}", "TrueFalse"), ("{{ (tools or []) | length }}", "0"),
    ("{{ tools | default([], true) | length }}", "0"), ("{{ tools | selectattr('a') | list | length }}", "0"),
    ("{{ tools | map(attribute='name') | list }}", "[]"), ("{{ tools[0] }}", ""), ("{{ tools ~ '' }}", "None"),
    ("{% if documents %}D{% endif %}{{ documents is none }}", "True"),
    # undefined, where none would raise
    ("<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>", "<tools></tools>"),
    ("{{ '<tools> ' }}{% for tool in tools %}{% if not loop.first %},{% endif %}{{ tool }}{% endfor %}", "<tools> "),
    ("{{ tools | length }}", "0"), ("{% if tools | length > 0 %}T{% else %}none{% endif %}", "none"),
    ("{{ tools | list | tojson }}", "[]"), ("{{ tools | join(', ') }}|{{ tools | first }}", "|"),
    ("{% if 'x' in tools %}T{% endif %}", ""), ("{% for n, t in tools | items %}{{ n }}{% endfor %}", ""),
    ("{% for d in documents %}{{ d.title }}{% else %}no documents{% endfor %}", "no documents"),
    ("{% macro all(list) %}{% for t in list %}{{ t.name }}{% endfor %}.{% endmacro %}{{ all(tools) }}", "."),
    ("{% set n = namespace(new=true) %}{% for t in tools %}{% set n.new = false %}{% endfor %}{{ n.new }}", "True"),
    ("{% if tools is defined %}D{% endif %}{% for t in tools %}{% endfor %}", ""),
    ("{% for t in tools + [] %}{{ t }}{% endfor %}", ""),
    # names that no request has
    ("{% if functions %}F{% endif %}{{ functions }}", ""), ("{% for f in functions %}{{ f }}{% endfor %}", ""),
    ("{{ functions | length }}{{ functions is defined }}{{ functions is none }}", "0FalseFalse"),
    ("{{ custom_tools | list }}{{ builtin_tools | join }}", "[]"), ("{{ date_string | default('today') }}", "today"),
    # joined to text
    ("{{ 'Functions:\\n' + functions }}", "Functions:\n"), ("{{ 'Today is ' + datetime + '.' }}", "Today is ."),
    ("{% set s = 'a' + '\\n' + functions %}{% set s = s + 'b' %}{{ s }}", "a\nb"), ("{{ functions + datetime }}", ""),
    ("{% set all = functions + [1] %}{{ all }}", "[1]"),
    # as none: Jinja2 cannot write an undefined value as JSON
    ("{{ functions | tojson }}", "null"),
]]
