"""A format of tool calls: how to recognise it, how to read it, how to write it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from appliance.text.calls.reading.grammar import GrammarWriter
from appliance.text.calls.reading.pieces import PieceReader, ToolSpec
from appliance.text.calls.reading.tape import Steps, TapeReader
from appliance.text.calls.reading.thinking import Story, ThoughtMarks

Reading = Callable[[Story, Sequence[ToolSpec] | None], Steps[None]]
Writing = Callable[[GrammarWriter, Sequence[ToolSpec], bool], str]
Spelling = tuple[str, str]
Path = tuple[str, ...]
ANY_TEXT = "/(?s:.*)/"
_NO_OBJECT = r"/([^\s{](?s:.*))?/"


@dataclass(frozen=True, slots=True)
class CallFormat:
    """A format of tool calls.

    - `recognises` says by the source of a chat template whether its model writes this format.
    - `markers` are texts of tokens that a reader must see, where they are control tokens.
    - `opens` are the texts by which calls begin, the one that a grammar asks for first.
    - `read` is a program that reads an answer after its first thought.
    - `write` gives an expression for one call, or for several where the last argument says so: of
      what follows the first of `opens`.
    - `thinking` is how its models set thoughts off, where they have a way of their own.
    - `around` makes an expression for an answer of one for its text, for a format that has its own
      way with thoughts. Its `read` and `write` are of whole answers.
    - `unkept` gives the paths of the keywords of a tool's parameters that `write` does not keep.
    - `spell` writes calls, a name and JSON arguments each, for templates that lose those of earlier
      turns. Its text is marked: names and arguments are from outside.
    - `searched` are all words that `read` looks for up to the first call, besides marks of thoughts
      and white space; empty where it looks for more than words.
    """

    name: str
    recognises: Callable[[str], bool]
    markers: tuple[str, ...]
    opens: tuple[str, ...]
    read: Reading
    write: Writing
    thinking: ThoughtMarks | None = None
    around: Callable[[GrammarWriter, str], str] | None = None
    spell: Callable[[Sequence[Spelling]], str] | None = None
    unkept: Callable[[ToolSpec], Iterator[Path]] | None = None
    searched: tuple[str, ...] = ()

    def reader(self, tools: Sequence[ToolSpec] = ()) -> PieceReader:
        """A reader of one answer without thoughts. `tools` are what the request offered."""
        return TapeReader(Story(None), lambda story: self.read(story, tools))

    def grammar(self, tools: Sequence[ToolSpec], *, required: bool, parallel: bool,
                control: Mapping[str, int] | None = None) -> str:
        """The Lark text of answers whose calls are calls of `tools`. Where a call is `required`,
        the answer is that; else text may stand before it, or alone. `parallel` allows several
        calls. `control` has ids of control tokens by their texts."""
        grammar = GrammarWriter(control)
        return grammar.lark(self.answer(grammar, tools, required, parallel))

    def answer(self, grammar: GrammarWriter, tools: Sequence[ToolSpec], required: bool, parallel: bool,
               text: str | None = None) -> str:
        """An expression for the answer proper, see `grammar`. `text` is one for an answer that
        calls nothing; None: any text, which may also stand before a call."""
        calls = self.write(grammar, tools, parallel)
        if self.around is not None:
            return calls if required else grammar.rule(f"{calls} | {self.around(grammar, text or ANY_TEXT)}")
        if not self.opens:
            return calls if required else grammar.rule(f"{calls} | {text or _NO_OBJECT}")
        if required or text is not None:
            calls = f"{grammar.text(self.opens[0])} {calls}"
            return calls if required else grammar.rule(f"{calls} | {text}")
        return grammar.rule(f"{grammar.up_to(self.opens[0])} {calls} | {ANY_TEXT}")
