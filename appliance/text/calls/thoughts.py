"""The ways of models to set thoughts off, one row each."""

from __future__ import annotations

from collections.abc import Callable

from appliance.text.calls.reading.thinking import ThoughtMarks


def _has(*marks: str) -> Callable[[str], bool]:
    return lambda source: all(mark in source for mark in marks)


THOUGHTS = (
    ThoughtMarks("cohere-2", _has("<|START_THINKING|>", "<|START_TEXT|>"), "<|START_THINKING|>", "<|END_THINKING|>",
                 frame=("<|START_TEXT|>", "<|END_TEXT|>")),
    ThoughtMarks("cohere", _has("<|START_THINKING|>"), "<|START_THINKING|>", "<|END_THINKING|>",
                 frame=("<|START_RESPONSE|>", "<|END_RESPONSE|>")),
    ThoughtMarks("gemma", _has("<|channel>"), "<|channel>thought", "<channel|>", anywhere=True),
    ThoughtMarks("mistral", _has("[THINK]"), "[THINK]", "[/THINK]"),
    ThoughtMarks("seed", _has("<seed:think>"), "<seed:think>", "</seed:think>"),
    ThoughtMarks("minimax-3", _has("<mm:think>"), "<mm:think>", "</mm:think>"),
    ThoughtMarks("hunyuan", _has("<think:opensource>"), "<think:opensource>", "</think:opensource>"),
    ThoughtMarks("apertus", _has("<|inner_prefix|>"), "<|inner_prefix|>", "<|inner_suffix|>"),
    ThoughtMarks("apriel", _has("[BEGIN FINAL RESPONSE]"), "Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    ThoughtMarks("thought", _has("<thought>"), "<thought>", "</thought>"),
    ThoughtMarks("granite", _has("<response>", "<think>"), "<think>", "</think>",
                 frame=("<response>", "</response>")),
    ThoughtMarks("think", lambda source: "</think>" in source or "<think>" in source, "<think>", "</think>"),
)
"""In order of recognition: the first row that recognises a template is the model's."""
