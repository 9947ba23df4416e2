"""The ways of models to set thoughts off, one row each."""

from __future__ import annotations

from appliance.engine.text.calls.reading.thinking import Thinking


def _has(mark: str):  # type: ignore[no-untyped-def]
    return lambda source: mark in source


THOUGHTS = (
    Thinking("cohere", _has("<|START_THINKING|>"), "<|START_THINKING|>", "<|END_THINKING|>"),
    Thinking("gemma", _has("<|channel>"), "<|channel>thought", "<channel|>", anywhere=True),
    Thinking("mistral", _has("[THINK]"), "[THINK]", "[/THINK]"),
    Thinking("seed", _has("<seed:think>"), "<seed:think>", "</seed:think>"),
    Thinking("minimax-3", _has("<mm:think>"), "<mm:think>", "</mm:think>"),
    Thinking("hunyuan", _has("<think:opensource>"), "<think:opensource>", "</think:opensource>"),
    Thinking("apertus", _has("<|inner_prefix|>"), "<|inner_prefix|>", "<|inner_suffix|>"),
    Thinking("apriel", _has("[BEGIN FINAL RESPONSE]"), "Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    Thinking("thought", _has("<thought>"), "<thought>", "</thought>"),
    Thinking("think", lambda source: "</think>" in source or "<think>" in source, "<think>", "</think>"),
)
"""In order of recognition: the first row that recognises a template is the model's."""
