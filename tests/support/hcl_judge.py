"""The independent reader of HCL."""

from __future__ import annotations

from importlib import resources
from typing import Any


def make() -> Any:
    """python-hcl2's own grammar and transformer, without the pickle cache that its `parses` writes and reads."""
    from hcl2 import SerializationOptions, serialize, transform
    from hcl2.postlexer import PostLexer
    from lark import Lark

    lark = Lark(resources.files("hcl2").joinpath("hcl2.lark").read_text(), parser="lalr", propagate_positions=True,
                postlex=PostLexer(), cache=False)
    options = SerializationOptions(with_comments=False, explicit_blocks=False, strip_string_quotes=True)
    return lambda text: serialize(transform(lark.parse(text + "\n")), serialization_options=options)
