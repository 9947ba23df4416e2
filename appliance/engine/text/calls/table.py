"""The formats of tool calls, one row each, in order of recognition."""

from __future__ import annotations

from appliance.engine.text.calls.objects import generic, hermes, llama, mistral

FORMATS = (
    mistral.FORMAT,
    llama.FORMAT,
    hermes.FORMAT,
)
"""The first row that recognises a template is the model's."""

GENERIC = generic.FORMAT
"""The format of templates without tools: the system text of `generic` explains it to the model."""
