"""The table of names, continued: rows of the Responses API, of the Messages API, and of tokens."""

from __future__ import annotations

from appliance.api.wishes import table
from appliance.api.wishes.parameter import Extra, by_name, demands, idle, wishes

_STORED = "this service stores nothing: send the earlier items in input"
_LOADED = "every tool is offered to the model at once"

RESPONSES = by_name([
    *demands(table.TEXT, Extra("previous_response_id", instead=_STORED),
             Extra("conversation", instead=_STORED),
             Extra("prompt", instead="this service stores no prompts: send instructions and input"),
             Extra("context_management", ([],), "send the input that is to count")),
    *demands(table.FORM, "moderation", Extra(
        "background", (False,), "this service stores nothing, so nobody could ask for the answer later")),
    *wishes(table.STORED, Extra("store", (False,))),
    *wishes("a prompt that is too long is refused, whatever it says", Extra("truncation", ("disabled",))),
    *wishes(table.SPEED, Extra("prompt_cache_retention", ("in_memory", "in-memory")),
            Extra("prompt_cache_options", ({},))),
    *idle(table.SPEED, "prompt_cache_key", "input.content.prompt_cache_breakpoint"),
    *wishes(table.PLACE, Extra("service_tier", ("auto", "default"))),
    *idle("it bounds hosted tools, which there are none of", "max_tool_calls"),
    *idle(table.IDENTITY, "user", Extra("metadata", ({},)), "safety_identifier", "client_metadata"),
    *wishes(table.STYLE, Extra("text.verbosity", ("medium",))),
    *wishes(table.EFFORT, Extra("reasoning.effort", taken=table.EFFORTS)),
    *wishes("thoughts come whole, and without a summary", Extra("reasoning.summary", ("auto",)),
            Extra("reasoning.generate_summary", ("auto",))),
    *wishes("the policy's size_padding decides about sizes",
            Extra("stream_options.include_obfuscation", (False,))),
    *wishes(_LOADED, *(Extra(f"{place}.defer_loading", (False,)) for place in ("tools", "tools.tools"))),
    *wishes("the caller runs its own functions, and their results are text",
            *(f"{place}.{name}" for place in ("tools", "tools.tools")
              for name in ("allowed_callers", "output_schema", "async"))),
    *wishes("a grammar of a free-form tool is told to the model, and not enforced", "tools.format"),
])

MESSAGES = by_name([
    *wishes(table.HOSTED, Extra("container"), Extra("mcp_servers", ([],), "this service hosts no tools")),
    *demands("it says where and by whom data may be processed, which the policy and the evidence show",
             "inference_geo"),
    *demands(table.TEXT, Extra("context_management", ({}, {"edits": []}), "send the messages that are to count")),
    *wishes(table.PLACE, Extra("service_tier", ("auto", "standard_only")), Extra("speed", ("standard",))),
    *idle(table.SPEED, *(f"{place}cache_control" for place in (
        "", "system.", "messages.content.", "messages.content.content.", "tools."))),
    *idle(table.IDENTITY, Extra("metadata", ({},)), "diagnostics"),
    *wishes(table.STORED, "thread"),
    *demands(table.TEXT, Extra("thread.previous_message_id", instead="this service stores no threads: send all "
                                   "messages")),
    *wishes(table.EFFORT, Extra("output_config.effort", taken=("low", "medium", "high", "xhigh", "max"))),
    *wishes("thoughts come whole", Extra("thinking.display", ("summarized",))),
    *wishes(_LOADED, Extra("tools.defer_loading", (False,))),
    *wishes("the caller runs its own functions", "tools.allowed_callers", Extra(
        "tools.eager_input_streaming", (False,)), Extra("tools.input_examples", ([],))),
])

TOKENS = by_name([
    *demands(table.TEXT, Extra("chat_template", instead="the policy decides this")),
    *wishes(table.OFF, Extra("mm_processor_kwargs", ({},)), Extra("parse_special", (False,))),
])
