"""A writer of grammars in llguidance's dialect of Lark.

The dialect's specification is `docs/syntax.md` of guidance-ai/llguidance. Control tokens are
written by their ids, `<[128010]>`, since names with brackets have no other spelling there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from appliance.text.calls.reading.pieces import ToolSpec

_META = re.compile(r"[\\^$.|?*+()\[\]{}/&~\-#]")


class GrammarWriter:
    """Rules of one grammar. `control` has the ids of the control tokens by their texts."""

    def __init__(self, control: Mapping[str, int] | None = None) -> None:
        self._control = {text: token for text, token in (control or {}).items() if text}
        texts = sorted(self._control, key=len, reverse=True)
        self._cut = re.compile(f"({'|'.join(map(re.escape, texts))})" if texts else r"((?!))")
        self._rules: list[str] = []

    def text(self, text: str) -> str:
        """An expression for `text`, in which texts of control tokens are these tokens."""
        parts = [part for part in self._cut.split(text) if part]
        return " ".join(f"<[{self._control[part]}]>" if part in self._control else quoted(part) for part in parts)

    def rule(self, body: str, options: str = "") -> str:
        """A new rule's name."""
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}{options}: {body}")
        return name

    def replace(self, name: str, body: str) -> None:
        """Another body for a rule, for rules that need their own names."""
        self._rules[int(name[1:])] = f"{name}: {body}"

    def json(self, schema: Mapping[str, Any] | bool) -> str:
        """A rule for JSON texts that a schema allows."""
        return self.rule(f"%json {json.dumps(schema, ensure_ascii=False)}")

    def arguments(self, tool: ToolSpec) -> str:
        """A rule for a JSON object of a tool's arguments."""
        return self.json({**tool.parameters, "type": "object"})

    def up_to(self, mark: str) -> str:
        """An expression for any text that ends with the first `mark`, and this mark."""
        token, rest = self._first(mark)
        if token:
            return f"/(?s:.*)/ {token} {rest}".rstrip()
        return self.rule(f"/(?s:.*){escaped(mark)}/", "[lazy]")

    def some(self, items: Sequence[str], between: str = "", *, many: bool = True) -> str:
        """An expression for one of `items`, or several of them with `between` in between."""
        one = self.rule(" | ".join(items))
        return f"{one} ({between} {one})*" if many else one

    def lark(self, start: str) -> str:
        """The grammar, whose texts are those of the expression `start`."""
        return "\n".join([f"start: {start}", *self._rules]) + "\n"

    def _first(self, mark: str) -> tuple[str, str]:
        """A mark that begins with a control token: this token, and the rest."""
        found = self._cut.match(mark)
        return ("", "") if found is None else (self.text(found.group()), self.text(mark[found.end():]))


def quoted(text: str) -> str:
    """A text as a literal."""
    return json.dumps(text, ensure_ascii=False)


def escaped(text: str) -> str:
    """A text as part of a regular expression between slashes."""
    return _META.sub(r"\\\g<0>", text).replace("\n", r"\n")
