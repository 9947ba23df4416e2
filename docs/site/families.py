"""`python docs/site/families.py` writes the cards of the families into the plain engine.

They are its literal of families, between two marks. With `--check` nothing is written, and what is
not up to date fails.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from appliance.families.card import Attend, Experts, Family
from appliance.families.table import FAMILIES

PLAIN = Path(__file__).parents[2] / "examples/plain_engine.py"
_MARKS = re.compile(r"(?<=# cards: begin\n).*?(?=# cards: end\n)", re.DOTALL)
TRAITS = ("norm", "topology", "layers", "windowless", "sectioned", "head_norm", "value_norm", "yarn_whole", "switch",
          "activation", "gated", "fused", "feed_forward_norm", "embedding_scale", "query_scale", "logit_scale",
          "recurrent", "single", "output_norm", "output_gate", "experts")
BASE, BASE_SWA = "rope.freq_base", "rope.freq_base_swa"
KINDS = {"HALVES": ("halves", (BASE,), True, False, ""),
         "NEIGHBOURS": ("neighbours", (BASE,), True, False, ""), "UNTURNED": (None, (), True, False, ""),
         "WINDOWED": ("halves", (BASE,), True, True, ""),
         "LOCAL": ("halves", (BASE_SWA,), False, True, "")}


def _layer(kind: Attend) -> tuple[Any, ...]:
    rotary = kind.rotary
    turned = (None, (), True) if rotary is None else (rotary.pairs, rotary.base, rotary.scaled)
    return (*turned, kind.window is not None, kind.sizes)


def traits(card: Family) -> dict[str, Any]:
    """The traits of a card that the arithmetic needs."""
    found = {name: getattr(card, name) for name in TRAITS}
    experts = card.experts or Experts()
    for name in ("layers", "windowless", "sectioned"):
        found[name] = None if found[name] is None else tuple(map(_layer, found[name]))
    return found | {"fused": "gate_up" in card.fused, "embedding_scale": card.embedding_scale == "sqrt(embedding)",
                    "query_scale": None if card.query_scale == "attention.scale" else card.query_scale,
                    "output_norm": card.output_norm.removesuffix(".weight"),
                    "experts": (experts.score, experts.normalised, experts.least, experts.added)}


def _text(value: Any) -> str:
    """A value as Python with double quotes; layers that repeat are multiplied."""
    if value in KINDS.values():
        return next(name for name, kind in KINDS.items() if kind == value)
    if isinstance(value, tuple) and value and isinstance(value[0], tuple):
        runs: list[list[Any]] = []
        for each in value:
            if runs and runs[-1][0] == each:
                runs[-1][1] += 1
            else:
                runs.append([each, 1])
        parts = [f"*[{_text(each)}] * {count}" if count > 1 else _text(each) for each, count in runs]
        return "(" + ", ".join(parts) + ("," if len(parts) == 1 else "") + ")"
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(map(_text, value)) + ("," if len(value) == 1 else "") + ")"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def literal() -> str:
    """The literal of all families, without what they share with llama."""
    base = traits(FAMILIES["llama"])
    lines = [f"{', '.join(group)} = {', '.join(_text(list(KINDS[name])) for name in group)}"
             for group in (("HALVES", "UNTURNED"), ("NEIGHBOURS",), ("WINDOWED",), ("LOCAL",))]
    lines.append("FAMILIES: dict[str, dict[str, Any]] = {")
    for name, card in FAMILIES.items():
        own = [f'"{key}": {_text(value)}' for key, value in traits(card).items()
               if value != base[key] or name == "llama"]
        line = f'    "{name}": {{'
        for index, each in enumerate(own):
            more = each + ("" if index + 1 == len(own) else ", ")
            if len(line) + len(more) > 117:
                lines.append(line.rstrip())
                line = "        "
            line += more
        lines.append(line + "},")
    return "\n".join([*lines, "}", ""])


def main() -> int:
    """Write or check; 1 where a check fails."""
    text = PLAIN.read_text(encoding="utf-8")
    made = _MARKS.sub(lambda _: literal(), text)
    if "--check" in sys.argv:
        return int(made != text)
    PLAIN.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
