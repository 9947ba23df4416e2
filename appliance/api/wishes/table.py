"""The table of names: parameters of chats and text completions that no type declares.

Sources: the OpenAI API reference ("Chat", "Completions"), vLLM's `ChatCompletionRequest` and
`CompletionRequest`, the README of llama.cpp's server, and Ollama's `api/types.go`. `other` has the
rows of the other endpoints.
"""

from __future__ import annotations

from appliance.api.wishes.parameter import Extra, by_name, demands, idle, wishes
from appliance.policy.schema import sampling

_THINK = ("use reasoning_effort; a template's own variable goes into chat_template_kwargs, for example "
          "{\"enable_thinking\": false}")
_CHATS = "chats have this, at /v1/chat/completions"
_TEXTS = "text completions have this, at /v1/completions"
_POLICY = "the policy decides this"
_TOOLS = "chats have tools, at /v1/chat/completions"
_CONTEXT = f"{_POLICY}: max_model_len in /v1/models tells the context length"

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")

# Why a row is what it is
SPEED = "it concerns speed and caches, and no token depends on it"
IDENTITY = "it says who asks, and no answer depends on it"
PLACE = "it chooses among machines, prices or models that this service does not have"
EFFORT = "a model thinks as its template lets it"
STYLE = "a model has no switch for it"
STORED = "nothing is stored, whatever it says"
HOSTED = "hosted tools are merely declared: a model answers without them"
OFF = "it adjusts what is off, or how and not what is answered"
TEXT = "it changes which text the model reads or writes"
ENDS = "it changes where an answer ends"
FORM = "it changes the members of an answer"
CHOICE = "it changes which tokens are chosen"
OTHER = "the other endpoint has it"

_OPENAI = [  # tools before the choice among them: of several that are refused the first is named
    *demands(OTHER,
             Extra("tools", ([],), _TOOLS, chats_have=True),
             Extra("functions", ([],), _TOOLS, chats_have=True),
             Extra("best_of", (1,), _TEXTS, texts_have=True),
             Extra("echo", (False,), _TEXTS, texts_have=True),
             Extra("function_call", ("none", "auto"), _TOOLS, chats_have=True),
             Extra("parallel_tool_calls", (True, False), _TOOLS, chats_have=True),
             Extra("suffix", ("",), _TEXTS, texts_have=True),
             Extra("tool_choice", ("none", "auto"), _TOOLS, chats_have=True)),
    *demands(FORM, "audio", Extra("modalities", (["text"],)), "moderation"),
    *wishes(SPEED, "prediction", Extra("prompt_cache_retention", ("in_memory", "in-memory")),
            Extra("prompt_cache_options", ({},))),
    *idle(SPEED, "prompt_cache_key"),
    *wishes(EFFORT, Extra("reasoning_effort", ("none",), _CHATS, taken=EFFORTS[1:], chats_have=True)),
    *wishes(PLACE, Extra("service_tier", ("auto", "default"))),
    *wishes(STORED, Extra("store", (False,))),
    *wishes(STYLE, Extra("verbosity", ("medium",))),
    *wishes(HOSTED, "web_search_options"),
    *idle(IDENTITY, "user", Extra("metadata", ({},)), "safety_identifier"),
    *wishes(f"{OFF}; the policy's size_padding decides about sizes",
            Extra("stream_options.include_obfuscation", (False,))),
]

_VLLM = [
    *(Extra(alias, becomes=row.name, why=f"another name of {row.name}")
      for row in sampling.PARAMETERS for alias in row.aliases),
    *demands(CHOICE, Extra("bad_words", ([],), "logit_bias takes token ids"),
             Extra("allowed_token_ids", (), "logit_bias takes token ids"), Extra("logits_processors", ([],)),
             "repetition_detection", *(
                 Extra(name, (), "structured_outputs takes a grammar") for name in (
                     "structured_outputs.structural_tag", "structural_tag")),
             Extra("watermarking", (False,))),
    *demands(ENDS, Extra("early_stopping", (False,))),
    *demands(TEXT, Extra("include_stop_str_in_output", (False,)), Extra("skip_special_tokens", (True,)),
             Extra("spaces_between_special_tokens", (True, False)), "truncate_prompt_tokens",
             Extra("add_special_tokens", (True,), chat=(False,)), Extra("documents", ([],)), "prompt_embeds",
             Extra("chat_template", (), _POLICY)),
    *demands(FORM, Extra("detokenize", (True,), "logprobs has the tokens"), "prompt_logprobs",
             Extra("return_tokens_as_token_ids", (False,)), Extra("return_token_ids", (False,)),
             Extra("include_reasoning", (True,)), Extra("return_token_offsets", (False,)),
             Extra("return_prompt_text", (False,)), "logprob_token_ids"),
    *demands(OTHER, Extra("add_generation_prompt", (True,), _CHATS, chats_have=True),
             Extra("continue_final_message", (False,), _CHATS, chats_have=True)),
    *wishes(EFFORT, Extra("thinking_token_budget", (-1,), _CHATS, chats_have=True)),
    *wishes(SPEED, Extra("priority", (0,)), Extra("routed_experts_prompt_start", (0,)),
            Extra("kv_transfer_params", ({},)), Extra("ec_transfer_params", ({},))),
    *wishes(OFF, Extra("stream_interval", (1,), _POLICY), Extra("mm_processor_kwargs", ({},)),
            Extra("media_io_kwargs", ({},)), Extra("vllm_xargs", ({},))),
    *idle(SPEED, "cache_salt", "session_id"),
    *idle(OFF, "guided_decoding_backend", "guided_whitespace_pattern", "truncation_side", "return_mm_kwargs"),
    *wishes(IDENTITY, Extra("request_id", (), "an answer's x-request-id names it")),
]

_LLAMA_CPP = [
    *(Extra(alias, becomes="max_tokens", why="another name of max_tokens") for alias in (
        "n_predict", "num_predict", "max_new_tokens", "max_output_tokens")),
    *(Extra(alias, becomes="n", why="another name of n") for alias in ("n_cmpl", "num_return_sequences")),
    Extra("sampler_priority", becomes="samplers", why="another name of samplers"),
    Extra("random_seed", becomes="seed", why="another name of seed"),
    Extra("cfg_negative_prompt", becomes="negative_prompt", why="another name of negative_prompt"),
    Extra("stop_sequences", becomes="stop", why="another name of stop"),
    *demands(CHOICE, *(Extra(name, off) for name, off in sampling.ELSEWHERE.items()),
             Extra("penalize_nl", (True,)), Extra("min_keep", (0, 1)), Extra("lora", ([],)),
             Extra("grammar_lazy", (False,)), Extra("grammar_triggers", ([],)),
             Extra("thinking_forced_open", (False,))),
    *demands(ENDS, Extra("n_indent", (0,)), Extra("t_max_predict_ms", (0, -1))),
    *demands(TEXT, Extra("n_keep", (0, -1)), Extra("n_discard", (0,)), Extra("context_shift", (False,)),
             Extra("image_data", ([],)), Extra("preserved_tokens", ([],))),
    *demands(FORM, Extra("n_probs", (0,), "use logprobs and top_logprobs"),
             Extra("post_sampling_probs", (False,)), Extra("return_tokens", (False,)),
             Extra("return_progress", (False,)), Extra("timings_per_token", (False,)),
             Extra("parse_tool_calls", (True,), "tool_choice = \"none\" lets a model call none"),
             Extra("response_fields", ([],)),
             Extra("reasoning_format", ("none", "auto", "deepseek"), _CHATS, chats_have=True)),
    *wishes(EFFORT, Extra("reasoning_budget", (-1,), _CHATS, chats_have=True)),
    *wishes(SPEED, Extra("cache_prompt", (True, False)), Extra("id_slot", (-1,)), Extra("slot_id", (-1,)),
            Extra("n_cache_reuse", (0,)), Extra("t_max_prompt_ms", (0, -1))),
    *wishes(OFF, Extra("sse_ping_interval", (), _POLICY)),
    *idle(OFF, *sampling.IDLE_ELSEWHERE),
]

_OLLAMA = [
    *wishes(EFFORT, Extra("think", (False,), _THINK, taken=(True, *EFFORTS), chats_have=True)),
    *wishes(SPEED, Extra("num_ctx", (), _CONTEXT), Extra("n_ctx", (), _CONTEXT)),
    *idle(SPEED, "keep_alive"),
    *wishes("a prompt that is too long is refused, whatever it says", Extra("truncate", (False,)),
            Extra("shift", (False,))),
    *demands(TEXT, Extra("num_keep", (0, -1)), Extra("raw", (False,)),
             Extra("system", ("",), "send a message with the role system"), Extra("template", ("",), _POLICY),
             Extra("context", ([],), "send earlier turns as messages"), Extra("images", ([],))),
    *demands(CHOICE, Extra("penalize_newline", (True,)), Extra(
        "options", ({},), "send its entries as parameters of the request, such as temperature and max_tokens")),
]

_OTHERS = [
    *wishes(EFFORT, Extra("enable_thinking", (False,), _THINK, taken=(True,), chats_have=True),
            Extra("thinking", (), _THINK), Extra("reasoning", (), _THINK), "prompt_mode"),
    *demands(ENDS, Extra("max_length", (), "use max_tokens, which does not count the prompt"),
             Extra("no_stop_trim", (False,))),
    *demands(CHOICE, Extra("do_sample", (True,), "use temperature = 0"), Extra("num_beams", (1,)),
             Extra("watermark", (False,)), Extra("no_repeat_ngram_size", (0,)),
             Extra("encoder_repetition_penalty", (1,)), Extra("smoothing_factor", (0,)),
             Extra("penalty_alpha", (0,)),
             Extra("extra_body", ({},), "send its entries as parameters of the request")),
    *demands(FORM, Extra("return_full_text", (False,)), Extra("details", (False,)),
             Extra("decoder_input_details", (False,)), Extra("top_n_tokens", (0,), "use top_logprobs"),
             Extra("separate_reasoning", (True,), "reasoning_format = \"none\" leaves thoughts in the content"),
             Extra("usage", ({"include": True}, {"include": False}), "use stream_options.include_usage")),
    *demands(TEXT, Extra("safe_prompt", (False,))),
    *wishes(PLACE, Extra("models", ([],)), Extra("provider", ({},)), Extra("transforms", ([],))),
    *idle(PLACE, "ttl"),
    *wishes(HOSTED, Extra("plugins", ([],))),
    *idle(OFF, "stream_reasoning"),
    *wishes("a model reads nothing of it", Extra("messages.type", ("message",)),
            Extra("messages.logprobs", ([],)), Extra("messages.content.logprobs", ([],)),
            Extra("messages.function_call", ({},)), Extra("messages.tool_name", ("",))),
    *idle(SPEED, *(f"{place}cache_control" for place in (
        "", "messages.", "messages.content.", "messages.tool_calls.", "tools.", "tools.function."))),
]

ROWS = by_name([*_OPENAI, *_VLLM, *_LLAMA_CPP, *_OLLAMA, *_OTHERS])
SOURCES = {"OpenAI": _OPENAI, "vLLM": _VLLM, "llama.cpp": _LLAMA_CPP, "Ollama": _OLLAMA, "others": _OTHERS}
