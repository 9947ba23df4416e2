"""A format of tool calls: how to recognise it, how to read it, how to write it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from appliance.engine.text.calls.reading.grammar import Grammar
from appliance.engine.text.calls.reading.pieces import Reader, Tool
from appliance.engine.text.calls.reading.tape import Steps, TapeReader
from appliance.engine.text.calls.reading.thinking import Story

Reading = Callable[[Story, Sequence[Tool] | None], Steps[None]]
Writing = Callable[[Grammar, Sequence[Tool], bool], str]


@dataclass(frozen=True, slots=True)
class Format:
    """A format of tool calls.

    - `recognises` says by the source of a chat template whether its model writes this format.
    - `markers` are texts of tokens that a reader must see, where they are control tokens.
    - `opens` are the texts by which calls begin, the one that a grammar asks for first.
    - `read` is a program that reads an answer after its first thought.
    - `write` gives an expression for one call, or for several where the last argument says so: of
      what follows the first of `opens`.
    - `whole`: `read` and `write` are of whole answers, thoughts and all.
    """

    name: str
    recognises: Callable[[str], bool]
    markers: tuple[str, ...]
    opens: tuple[str, ...]
    read: Reading
    write: Writing
    whole: bool = False

    def reader(self, tools: Sequence[Tool] = ()) -> Reader:
        """A reader of one answer without thoughts. `tools` are what the request offered."""
        return TapeReader(Story(None), lambda story: self.read(story, tools))

    def grammar(self, tools: Sequence[Tool], *, required: bool, parallel: bool,
                control: Mapping[str, int] | None = None) -> str:
        """The Lark text of answers whose calls are calls of `tools`. Where a call is `required`,
        the answer is that; else text may stand before it, or alone. `parallel` allows several
        calls. `control` has ids of control tokens by their texts."""
        grammar = Grammar(control)
        return grammar.lark(self.answer(grammar, tools, required, parallel))

    def answer(self, grammar: Grammar, tools: Sequence[Tool], required: bool, parallel: bool) -> str:
        """An expression for the answer proper, see `grammar`."""
        calls = self.write(grammar, tools, parallel)
        if self.whole:
            return calls if required else f"{calls} | /(?s:.*)/"
        if not self.opens:
            return calls if required else grammar.rule(rf"{calls} | /([^\s{{](?s:.*))?/")
        if required:
            return f"{grammar.text(self.opens[0])} {calls}"
        return grammar.rule(f"{grammar.up_to(self.opens[0])} {calls} | /(?s:.*)/")
