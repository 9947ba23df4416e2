"""Policies written anew, at random: as formatted by other people, and with other fields in them."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator

from appliance.policy.explaining.checking import check
from appliance.policy.explaining.parser import parse_text
from appliance.policy.hcl.tree import Body, ListNode, Literal, Node
from appliance.policy.schema import Policy
from appliance.policy.schema.base import Block, FieldShape, fields
from tests.support.policies import two_values


def render(body: Body, rng: random.Random, level: int = 0) -> str:
    """Write a body anew: order, spacing, comments, escapes, line ends and sizes' spaces at random."""
    def value(node: Node) -> str:
        if isinstance(node, ListNode):
            items = [value(item) for item in node.items]
            rng.shuffle(items)
            gap = rng.choice([" ", "\n", " # c\n", " /* c */ "])
            return "[" + gap + f",{gap}".join(items) + rng.choice([",", ""] if items else [""]) + gap + "]"
        if not isinstance(node, Literal):
            raise TypeError(node)
        if isinstance(node.value, str):
            text = json.dumps(node.value, ensure_ascii=rng.random() < 0.5)
            text = re.sub(r"\\u(d[89ab]..)\\u(d[c-f]..)", lambda m: json.loads(f'"{m[0]}"'), text)
            text = text.replace("${", "$${").replace("%{", "%%{")
            first = node.value[:1]
            if first.isalnum() and first.isascii() and rng.random() < 0.3:
                text = f'"\\u{ord(first):04x}' + text[2:]
            return text
        if isinstance(node.value, bool):
            return "true" if node.value else "false"
        return str(node.value)

    def comment() -> str:
        return rng.choice(["", "", " # x = 1", " // } {", ' /* " */', "\t"])

    equals = ["=", " = ", "  =\t"]
    lines = [f"{name}{rng.choice(equals)}{value(attribute.value)}{comment()}"
             for name, attribute in body.attributes.items()]
    for block in body.blocks:
        labels = "".join(f" {json.dumps(label)}" for label, _ in block.labels)
        lines.append(f"{block.type}{labels} {{{comment()}\n{render(block.body, rng, level + 1)}}}")
    rng.shuffle(lines)
    return "".join(rng.choice(["", "\n", " ", "# c\n"]) + line + rng.choice(["\n", "\n\n"]) for line in lines)


def crowded(body: Body, rng: random.Random) -> str:
    """Write a body with as much in a line as our parser takes, and texts of several lines with blanks behind their
    beginning: what HashiCorp's parser refuses."""
    def value(node: Node) -> str:
        if isinstance(node, ListNode):
            return f"[{', '.join(map(value, node.items))}]"
        if isinstance(node, Literal) and isinstance(node.value, str) and node.value.endswith("\n"):
            return f"<<END  \n{node.value.replace('${', '$${').replace('%{', '%%{')}END"
        if not isinstance(node, Literal):
            raise TypeError(node)
        text = json.dumps(node.value, ensure_ascii=False) if isinstance(node.value, str | bool) else str(node.value)
        return text.replace("${", "$${").replace("%{", "%%{")

    parts = [f"{name} = {value(each.value)}" for name, each in body.attributes.items()]
    parts += [f"{block.type}{''.join(f' {json.dumps(label)}' for label, _ in block.labels)} "
              f"{{{rng.choice(['', ' ', ' /* c */ ', '# c' + chr(10)])}{crowded(block.body, rng)}}}"
              for block in body.blocks]
    rng.shuffle(parts)
    return "".join(part + ("\n" if part.endswith("END") else rng.choice([" ", "  ", " /* } */ ", "\n", " # c\n"]))
                   for part in parts)


def bodies(body: Body, cls: type[Block] = Policy, version: int = 1,
           label: str | None = None) -> Iterator[tuple[Body, list[FieldShape]]]:
    """Yield the file and each block in it, with its fields."""
    shapes = {shape.name: shape.of(label) for shape in fields(cls, version)}
    yield body, list(shapes.values())
    for block in body.blocks:
        inner = shapes[block.type].block
        if inner is not None:
            named = block.labels[0][0] if block.labels else block.type
            yield from bodies(block.body, inner, version, named if inner.LABELS else None)


def _added(shape: FieldShape, rng: random.Random) -> str:
    """Return a field, or an empty block, as it may be added to a file."""
    if shape.kind is not None:
        return f"{shape.name} = {json.dumps(rng.choice(two_values(shape.kind)))}"
    if shape.labelled:
        return f'{shape.name} "{rng.choice(shape.labels or "abc")}" {{}}'
    return f"{shape.name} = {{}}" if rng.random() < 0.3 else f"{shape.name} {{}}"


def _mutated(text: str, rng: random.Random, version: int) -> str:
    """Return a policy with one field or block less, or one more, whether or not it is valid then."""
    body, shapes = rng.choice(list(bodies(parse_text(text), version=version)))
    inside = body.span.start + 1 if body.span.end else 0
    spans = [(each.name_span.start, each.value.span.end) for each in body.attributes.values()]
    spans += [(each.span.start, each.span.end) for each in body.blocks]
    if spans and rng.random() < 0.4:
        start, end = rng.choice(spans)
        return text[:start] + text[end:]
    there = {*body.attributes, *(block.type for block in body.blocks)}
    absent = [shape for shape in shapes if shape.name not in there or shape.labelled]
    return text if not absent else f"{text[:inside]}\n{_added(rng.choice(absent), rng)}\n{text[inside:]}"


def another(text: str, rng: random.Random, version: int = 1, steps: int = 30, strict: str = "no path") -> str:
    """Return another valid policy: each step that leaves the text valid is taken. Below the path `strict` it breaks
    no rule of a later schema either."""
    for _ in range(steps):
        changed = _mutated(text, rng, version)
        checked = check(changed)
        if checked.valid and not any(
                found.code == "rule" and found.path.startswith(strict) for found in checked.diagnostics):
            text = changed
    return text
