"""The ways of models to set thoughts off, one row each."""

from __future__ import annotations

from appliance.engine.text.calls.reading.thinking import Thinking

THOUGHTS = (
    Thinking("mistral", lambda source: "[THINK]" in source, "[THINK]", "[/THINK]"),
    Thinking("think", lambda source: "</think>" in source or "<think>" in source, "<think>", "</think>"),
)
"""In order of recognition: the first row that recognises a template is the model's."""
