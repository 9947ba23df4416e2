"""Write tests/goldens/template/*.json: what Jinja2, set up as Hugging Face does, makes of templates.

    python tests/goldens/make_template_goldens.py LLAMA_CPP

LLAMA_CPP is a folder with llama.cpp's models/templates. Needs jinja2 (3.1), which the project itself does not use.
language.json holds what it makes of each case in language.txt, or null where it raises. renderings.json holds, for
each template of llama.cpp and each chat of tests/support/chats.py, the first 16 digits of the SHA-256 of
the prompt, or null where the template raises.
"""

from __future__ import annotations

import hashlib
import json
import sys
from datetime import datetime
from pathlib import Path

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.sandbox

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.support.chats import CHATS, NOW, SPECIAL
from tests.support.template_cases import CASES, VARIABLES

FOLDER = Path(__file__).parent / "template"


class Generation(jinja2.ext.Extension):
    """`{% generation %}` passes its body through."""

    tags = frozenset(["generation"])

    def parse(self, parser):
        """The body without its tags."""
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


class Refused(jinja2.exceptions.TemplateRuntimeError):
    """A template refuses a chat in its own words."""


def _refuse(message):
    raise Refused(message)


def environment() -> jinja2.Environment:
    """Jinja2 as `transformers.utils.chat_template_utils` sets it up."""
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = lambda value, ensure_ascii=False, indent=None, separators=None, sort_keys=False: (
        json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys))
    env.globals["raise_exception"] = _refuse
    env.globals["strftime_now"] = lambda pattern: datetime.fromisoformat(NOW).strftime(pattern)
    return env


class Empty(jinja2.Undefined):
    """An undefined value that text can be joined to."""

    def __add__(self, other):
        """The other value."""
        return other

    __radd__ = __add__


def render(template, chat) -> str | None:
    """The prompt, or None where the template raises. Names that a chat does not have are none, as Hugging Face gives
    them; where that raises, they are undefined; where that raises too, they are undefined and empty text."""
    given = {"messages": chat["messages"], "add_generation_prompt": chat["add_generation_prompt"], **SPECIAL,
             **chat.get("variables", {})}
    if "tools" in chat:
        given["tools"] = chat["tools"]
    names = jinja2.meta.find_undeclared_variables(template.environment.parse(template.source_text))
    absent = {name: Empty(name=name) for name in names - given.keys() - template.environment.globals.keys()}
    for defaults in ({"tools": None, "documents": None}, {}, absent):
        try:
            return template.render(**{**defaults, **given})
        except jinja2.exceptions.TemplateRuntimeError as error:
            if isinstance(error, Refused):
                return None
        except Exception:  # noqa: BLE001, S112 - whatever a template raises
            continue
    return None


def language(env: jinja2.Environment, case: str) -> str | None:
    """What a small template gives, or None where it raises."""
    try:
        return env.from_string(case).render(**VARIABLES)
    except Exception:  # noqa: BLE001 - whatever a template raises
        return None


def digest(text: str | None) -> str | None:
    """The first 16 hexadecimal digits of SHA-256."""
    return None if text is None else hashlib.sha256(text.encode()).hexdigest()[:16]


def main() -> None:
    """Render everything."""
    env, found = environment(), {}
    for path in sorted((Path(sys.argv[1]) / "models/templates").glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        try:
            template = env.from_string(source)
            template.source_text = source
        except jinja2.exceptions.TemplateError as error:
            print(path.name, "does not parse:", error)
            continue
        prompts = {name: render(template, chat) for name, chat in CHATS.items()}
        found[path.name] = {"source": digest(source), "prompts": {name: digest(text) for name, text in prompts.items()}}
    (FOLDER / "renderings.json").write_text(json.dumps({"now": NOW, "templates": found}, indent=1) + "\n")
    made = [language(env, case) for case in CASES]
    (FOLDER / "language.json").write_text(json.dumps(made, ensure_ascii=False, indent=0) + "\n")


if __name__ == "__main__":
    main()
