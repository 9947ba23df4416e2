"""The table of names: parameters of chats and text completions that no type declares.

Sources: the OpenAI API reference ("Chat", "Completions"), vLLM's `ChatCompletionRequest` and
`CompletionRequest`, the README of llama.cpp's server, and Ollama's `api/types.go`. `other` has the
rows of the other endpoints.
"""

from __future__ import annotations

from appliance.api.wishes.parameter import Parameter, by_name, demands, idle, wishes
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
             Parameter("tools", ([],), _TOOLS, chats_have=True),
             Parameter("functions", ([],), _TOOLS, chats_have=True),
             Parameter("best_of", (1,), _TEXTS, texts_have=True),
             Parameter("echo", (False,), _TEXTS, texts_have=True),
             Parameter("function_call", ("none", "auto"), _TOOLS, chats_have=True),
             Parameter("parallel_tool_calls", (True, False), _TOOLS, chats_have=True),
             Parameter("suffix", ("",), _TEXTS, texts_have=True),
             Parameter("tool_choice", ("none", "auto"), _TOOLS, chats_have=True)),
    *demands(FORM, "audio", Parameter("modalities", (["text"],)), "moderation"),
    *wishes(SPEED, "prediction", Parameter("prompt_cache_retention", ("in_memory", "in-memory")),
            Parameter("prompt_cache_options", ({},))),
    *idle(SPEED, "prompt_cache_key"),
    *wishes(EFFORT, Parameter("reasoning_effort", ("none",), _CHATS, taken=EFFORTS[1:], chats_have=True)),
    *wishes(PLACE, Parameter("service_tier", ("auto", "default"))),
    *wishes(STORED, Parameter("store", (False,))),
    *wishes(STYLE, Parameter("verbosity", ("medium",))),
    *wishes(HOSTED, "web_search_options"),
    *idle(IDENTITY, "user", Parameter("metadata", ({},)), "safety_identifier"),
    *wishes(f"{OFF}; the policy's size_padding decides about sizes",
            Parameter("stream_options.include_obfuscation", (False,))),
]

_VLLM = [
    *(Parameter(alias, becomes=row.name, why=f"another name of {row.name}")
      for row in sampling.PARAMETERS for alias in row.aliases),
    *demands(CHOICE, Parameter("bad_words", ([],), "logit_bias takes token ids"),
             Parameter("allowed_token_ids", (), "logit_bias takes token ids"), Parameter("logits_processors", ([],)),
             "repetition_detection", *(
                 Parameter(name, (), "structured_outputs takes a grammar") for name in (
                     "structured_outputs.structural_tag", "structural_tag")),
             Parameter("watermarking", (False,))),
    *demands(ENDS, Parameter("early_stopping", (False,))),
    *demands(TEXT, Parameter("include_stop_str_in_output", (False,)), Parameter("skip_special_tokens", (True,)),
             Parameter("spaces_between_special_tokens", (True, False)), "truncate_prompt_tokens",
             Parameter("add_special_tokens", (True,), chat=(False,)), Parameter("documents", ([],)), "prompt_embeds",
             Parameter("chat_template", (), _POLICY)),
    *demands(FORM, Parameter("detokenize", (True,), "logprobs has the tokens"), "prompt_logprobs",
             Parameter("return_tokens_as_token_ids", (False,)), Parameter("return_token_ids", (False,)),
             Parameter("include_reasoning", (True,)), Parameter("return_token_offsets", (False,)),
             Parameter("return_prompt_text", (False,)), "logprob_token_ids"),
    *demands(OTHER, Parameter("add_generation_prompt", (True,), _CHATS, chats_have=True),
             Parameter("continue_final_message", (False,), _CHATS, chats_have=True)),
    *wishes(EFFORT, Parameter("thinking_token_budget", (-1,), _CHATS, chats_have=True)),
    *wishes(SPEED, Parameter("priority", (0,)), Parameter("routed_experts_prompt_start", (0,)),
            Parameter("kv_transfer_params", ({},)), Parameter("ec_transfer_params", ({},))),
    *wishes(OFF, Parameter("stream_interval", (1,), _POLICY), Parameter("mm_processor_kwargs", ({},)),
            Parameter("media_io_kwargs", ({},)), Parameter("vllm_xargs", ({},))),
    *idle(SPEED, "cache_salt", "session_id"),
    *idle(OFF, "guided_decoding_backend", "guided_whitespace_pattern", "truncation_side", "return_mm_kwargs"),
    *wishes(IDENTITY, Parameter("request_id", (), "an answer's x-request-id names it")),
]

_LLAMA_CPP = [
    *(Parameter(alias, becomes="max_tokens", why="another name of max_tokens") for alias in (
        "n_predict", "num_predict", "max_new_tokens", "max_output_tokens")),
    *(Parameter(alias, becomes="n", why="another name of n") for alias in ("n_cmpl", "num_return_sequences")),
    Parameter("sampler_priority", becomes="samplers", why="another name of samplers"),
    Parameter("random_seed", becomes="seed", why="another name of seed"),
    Parameter("cfg_negative_prompt", becomes="negative_prompt", why="another name of negative_prompt"),
    Parameter("stop_sequences", becomes="stop", why="another name of stop"),
    *demands(CHOICE, *(Parameter(name, off) for name, off in sampling.ELSEWHERE.items()),
             Parameter("penalize_nl", (True,)), Parameter("min_keep", (0, 1)), Parameter("lora", ([],)),
             Parameter("grammar_lazy", (False,)), Parameter("grammar_triggers", ([],)),
             Parameter("thinking_forced_open", (False,))),
    *demands(ENDS, Parameter("n_indent", (0,)), Parameter("t_max_predict_ms", (0, -1))),
    *demands(TEXT, Parameter("n_keep", (0, -1)), Parameter("n_discard", (0,)), Parameter("context_shift", (False,)),
             Parameter("image_data", ([],)), Parameter("preserved_tokens", ([],))),
    *demands(FORM, Parameter("n_probs", (0,), "use logprobs and top_logprobs"),
             Parameter("post_sampling_probs", (False,)), Parameter("return_tokens", (False,)),
             Parameter("return_progress", (False,)), Parameter("timings_per_token", (False,)),
             Parameter("parse_tool_calls", (True,), "tool_choice = \"none\" lets a model call none"),
             Parameter("response_fields", ([],)),
             Parameter("reasoning_format", ("none", "auto", "deepseek"), _CHATS, chats_have=True)),
    *wishes(EFFORT, Parameter("reasoning_budget", (-1,), _CHATS, chats_have=True)),
    *wishes(SPEED, Parameter("cache_prompt", (True, False)), Parameter("id_slot", (-1,)), Parameter("slot_id", (-1,)),
            Parameter("n_cache_reuse", (0,)), Parameter("t_max_prompt_ms", (0, -1))),
    *wishes(OFF, Parameter("sse_ping_interval", (), _POLICY)),
    *idle(OFF, *sampling.IDLE_ELSEWHERE),
]

_OLLAMA = [
    *wishes(EFFORT, Parameter("think", (False,), _THINK, taken=(True, *EFFORTS), chats_have=True)),
    *wishes(SPEED, Parameter("num_ctx", (), _CONTEXT), Parameter("n_ctx", (), _CONTEXT)),
    *idle(SPEED, "keep_alive"),
    *wishes("a prompt that is too long is refused, whatever it says", Parameter("truncate", (False,)),
            Parameter("shift", (False,))),
    *demands(TEXT, Parameter("num_keep", (0, -1)), Parameter("raw", (False,)),
             Parameter("system", ("",), "send a message with the role system"), Parameter("template", ("",), _POLICY),
             Parameter("context", ([],), "send earlier turns as messages"), Parameter("images", ([],))),
    *demands(CHOICE, Parameter("penalize_newline", (True,)), Parameter(
        "options", ({},), "send its entries as parameters of the request, such as temperature and max_tokens")),
]

_OTHERS = [
    *wishes(EFFORT, Parameter("enable_thinking", (False,), _THINK, taken=(True,), chats_have=True),
            Parameter("thinking", (), _THINK), Parameter("reasoning", (), _THINK), "prompt_mode"),
    *demands(ENDS, Parameter("max_length", (), "use max_tokens, which does not count the prompt"),
             Parameter("no_stop_trim", (False,))),
    *demands(CHOICE, Parameter("do_sample", (True,), "use temperature = 0"), Parameter("num_beams", (1,)),
             Parameter("watermark", (False,)), Parameter("no_repeat_ngram_size", (0,)),
             Parameter("encoder_repetition_penalty", (1,)), Parameter("smoothing_factor", (0,)),
             Parameter("penalty_alpha", (0,)),
             Parameter("extra_body", ({},), "send its entries as parameters of the request")),
    *demands(FORM, Parameter("return_full_text", (False,)), Parameter("details", (False,)),
             Parameter("decoder_input_details", (False,)), Parameter("top_n_tokens", (0,), "use top_logprobs"),
             Parameter("separate_reasoning", (True,), "reasoning_format = \"none\" leaves thoughts in the content"),
             Parameter("usage", ({"include": True}, {"include": False}), "use stream_options.include_usage")),
    *demands(TEXT, Parameter("safe_prompt", (False,))),
    *wishes(PLACE, Parameter("models", ([],)), Parameter("provider", ({},)), Parameter("transforms", ([],))),
    *idle(PLACE, "ttl"),
    *wishes(HOSTED, Parameter("plugins", ([],))),
    *idle(OFF, "stream_reasoning"),
    *wishes("a model reads nothing of it", Parameter("messages.type", ("message",)),
            Parameter("messages.logprobs", ([],)), Parameter("messages.content.logprobs", ([],)),
            Parameter("messages.function_call", ({},)), Parameter("messages.tool_name", ("",))),
    *idle(SPEED, *(f"{place}cache_control" for place in (
        "", "messages.", "messages.content.", "messages.tool_calls.", "tools.", "tools.function."))),
]

ROWS = by_name([*_OPENAI, *_VLLM, *_LLAMA_CPP, *_OLLAMA, *_OTHERS])
SOURCES = {"OpenAI": _OPENAI, "vLLM": _VLLM, "llama.cpp": _LLAMA_CPP, "Ollama": _OLLAMA, "others": _OTHERS}
