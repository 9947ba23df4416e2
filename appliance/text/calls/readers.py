"""The format, the thoughts and the reader of a model, by its chat template."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from appliance.text.calls.objects import generic
from appliance.text.calls.reading.format import ANY_TEXT, CallFormat
from appliance.text.calls.reading.grammar import GrammarWriter
from appliance.text.calls.reading.pieces import PieceReader, ToolSpec
from appliance.text.calls.reading.tape import Steps, TapeReader
from appliance.text.calls.reading.thinking import Story, ThoughtMarks
from appliance.text.calls.table import FORMATS, GENERIC
from appliance.text.calls.thoughts import THOUGHTS
from appliance.text.jinja.marks import spans_of
from appliance.text.template import ChatTemplate
from appliance.text.tokenizer import Tokenizer


def format_of(template: ChatTemplate) -> CallFormat:
    """The format in which a template's model is asked to call tools: the generic one where the
    template does not tell the model of any tools."""
    return native_of(template) or GENERIC if template.shows_tools else GENERIC


def native_of(template: ChatTemplate) -> CallFormat | None:
    """The format that a template's model was trained on; None if it is not known."""
    return next((each for each in FORMATS if each.recognises(template.source)), None)


def thinking_of(template: ChatTemplate) -> ThoughtMarks | None:
    """How a template's model sets its thoughts off; None for a model without thoughts."""
    native = native_of(template)
    if native is not None and native.thinking is not None:
        return native.thinking
    return next((each for each in THOUGHTS if each.recognises(template.source)), None)


def opened(template: ChatTemplate, prompt: str) -> bool:
    """Whether a rendered prompt ends within a thought, by text of the template's own."""
    thinking = thinking_of(template)
    if thinking is None:
        return False
    end = len(prompt.rstrip())
    begin = end - len(thinking.open)
    return prompt.endswith(thinking.open, 0, end) and all(last <= begin for _, last in spans_of(prompt))


def reader_of(template: ChatTemplate, tools: Sequence[ToolSpec] | None, opened: bool, *,
              muted: bool = False) -> PieceReader:
    """A reader of one answer: thoughts, and calls of the `tools` that the request offered (None:
    it offered none, and no text is a call). `opened`: the prompt ends within a thought. `muted`:
    the answer is to have no calls, so those of `tools` are left out of it."""
    form, native = format_of(template), native_of(template)

    def program(story: Story) -> Steps[None]:
        yield from story.begin()
        if native is not None and native.around is not None:
            yield from native.read(story, tools)
        elif tools is None:
            yield from story.text(())
        elif native is not None and form is GENERIC:
            yield from generic.lead(story, tools)
            yield from native.read(story, tools)
        else:
            yield from form.read(story, tools)

    names = [tool.name for tool in tools or ()]
    return TapeReader(Story(thinking_of(template), opened, names, muted=muted), program)


def grammar_of(template: ChatTemplate, tools: Sequence[ToolSpec], *, required: bool, parallel: bool, opened: bool,
               control: Mapping[str, int] | None = None, text: Callable[[GrammarWriter], str] | None = None) -> str:
    """The Lark text of a model's answers with calls of `tools`, after a thought if it has one.

    - `required`: the answer must be a call. Else it may be any text, or what `text` gives an
      expression for, and with any text before a call.
    - `parallel` allows several calls; `opened`: the prompt ends within a thought.
    - `control` has ids of the control tokens by their texts.
    """
    grammar, form = GrammarWriter(control), format_of(template)
    said = text(grammar) if text is not None else None
    if tools:
        answer = form.answer(grammar, tools, required, parallel, said)
        return grammar.lark(answer) if form.around is not None else after_thought(template, grammar, answer,
                                                                                  opened=opened)
    return after_thought(template, grammar, said or ANY_TEXT, opened=opened)


def after_thought(template: ChatTemplate, grammar: GrammarWriter, answer: str, *, opened: bool) -> str:
    """The Lark text of answers by an expression of `grammar` for their text, after a thought where
    the model has them."""
    thinking, native = thinking_of(template), native_of(template)
    if native is not None and native.around is not None:
        return grammar.lark(native.around(grammar, answer))
    if thinking is None:
        return grammar.lark(answer)
    thought = f"{grammar.up_to(thinking.close)} /\\s*/"
    if not opened:
        thought = f"({grammar.text(thinking.open)} {thought})?"
    return grammar.lark(f"{thought} {answer}")


def searched_of(template: ChatTemplate, *, tools: bool) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """All words that a reader of an answer looks for, besides white space: marks of thoughts, and
    of the first call where there are `tools`. None where it looks for more than words, or where one
    of them is in another."""
    thinking, native = thinking_of(template), native_of(template)
    if native is not None and native.around is not None:
        return None
    calls = native.searched if tools and native is not None and format_of(template) is native else ()
    if tools and not calls:
        return None
    thoughts = () if thinking is None else (thinking.open, thinking.close, *(thinking.frame or ()))
    found = tuple(dict.fromkeys((*thoughts, *calls)))
    apart = all(one == other or one not in other for one in found for other in found)
    return (tuple(dict.fromkeys(thoughts)), calls) if apart else None


def markers_of(template: ChatTemplate, *, tools: bool) -> tuple[str, ...]:
    """Texts of tokens that a reader must see, where they are control tokens of the model."""
    thinking = thinking_of(template)
    native = native_of(template)
    calls = native.markers if native is not None and (tools or native.around is not None) else ()
    return (*calls, *(thinking.markers if thinking else ()))


def control_of(tokenizer: Tokenizer, markers: Sequence[str]) -> dict[str, int]:
    """The ids of those `markers` that are control tokens, by their texts."""
    found = {}
    for marker in markers:
        ids = tokenizer.encode(marker, parse_special=True)
        if len(ids) == 1 and tokenizer.is_special(ids[0]):
            found[marker] = ids[0]
    return found
