"""Parameters that other servers have and no request type here declares: one row each.

`settle` applies the table to a request. A row names the values that change nothing; null is always
one. These are accepted: a value that says what happens anyway asks for nothing. A row may name the
parameter that does the same here (`becomes`). Every other value is refused by name, with the
allowed values and what to use instead.

Sources: the OpenAI API reference ("Chat", "Completions"), vLLM's `ChatCompletionRequest` and
`CompletionRequest`, the README of llama.cpp's server, and Ollama's `api/types.go`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from appliance.policy.schema import sampling
from appliance.service.api.problems import RequestError

Endpoint = Literal["chat", "completions"]


@dataclass(frozen=True)
class Parameter:
    """One parameter, by the name that a client sends."""

    name: str
    neutral: tuple[Any, ...] = ()  # values that change nothing; null is one always
    instead: str = ""  # what a refusal adds: the way to ask for it here
    chat: tuple[Any, ...] | None = None  # `neutral` for chats, where it differs
    idle: bool = False  # whether no value changes anything
    becomes: str | None = None  # the name of a declared parameter with this meaning
    chats_have: bool = False  # whether a chat declares it: the row is for completions
    texts_have: bool = False  # the same the other way round

    def allows(self, value: Any, endpoint: Endpoint) -> bool:
        """Whether a value says what happens anyway."""
        return value is None or self.idle or any(same(value, each) for each in self.values(endpoint))

    def values(self, endpoint: Endpoint) -> tuple[Any, ...]:
        """The neutral values of an endpoint."""
        return self.chat if endpoint == "chat" and self.chat is not None else self.neutral

    def refusal(self, endpoint: Endpoint) -> RequestError:
        """The refusal of another value."""
        allowed = " or ".join([*map(json.dumps, self.values(endpoint)), "null"])
        hint = f"; {self.instead}" if self.instead else ""
        return RequestError("unsupported_parameter", f"{self.name}: this service supports no value but {allowed}{hint}",
                            param=self.name)


def _idle(*names: str) -> list[Parameter]:
    """Rows of parameters without effect here: they adjust others that are off, or concern speed
    alone."""
    return [Parameter(name, idle=True) for name in names]


def _absent(*names: str, empty: Any = None, instead: str = "") -> list[Parameter]:
    """Rows of parameters whose only neutral values are null and perhaps one empty value."""
    return [Parameter(name, () if empty is None else (empty,), instead) for name in names]


_THINK = ("use reasoning_effort; a template's own variable goes into chat_template_kwargs, for example "
          "{\"enable_thinking\": false}")
_CHATS = "chats have this, at /v1/chat/completions"
_TEXTS = "text completions have this, at /v1/completions"
_POLICY = "the policy decides this"
_TOOLS = "chats have tools, at /v1/chat/completions"

_OPENAI = [  # tools before the choice among them: of several that are refused the first is named
    Parameter("tools", ([],), _TOOLS, chats_have=True),
    Parameter("functions", ([],), _TOOLS, chats_have=True),
    Parameter("audio"),
    Parameter("best_of", (1,), _TEXTS, texts_have=True),
    Parameter("echo", (False,), _TEXTS, texts_have=True),
    Parameter("function_call", ("none", "auto"), _TOOLS, chats_have=True),
    Parameter("modalities", (["text"],)),
    Parameter("moderation"),
    Parameter("parallel_tool_calls", (True, False), _TOOLS, chats_have=True),
    Parameter("prediction"),
    Parameter("prompt_cache_retention", ("in_memory", "in-memory")),
    Parameter("reasoning_effort", ("none",), _CHATS, chats_have=True),
    Parameter("service_tier", ("auto", "default")),
    Parameter("store", (False,)),
    Parameter("suffix", ("",), _TEXTS, texts_have=True),
    Parameter("tool_choice", ("none", "auto"), _TOOLS, chats_have=True),
    Parameter("verbosity", ("medium",)),
    Parameter("web_search_options"),
]

_VLLM = [
    *(Parameter(alias, becomes=row.name) for row in sampling.PARAMETERS for alias in row.aliases),
    Parameter("ignore_eos", (False,), "logit_bias can keep a model from ending its turn"),
    Parameter("min_tokens", (0,)),
    Parameter("stop_token_ids", ([],), "stop takes texts"),
    Parameter("bad_words", ([],), "logit_bias takes token ids"),
    Parameter("allowed_token_ids", (), "logit_bias takes token ids"),
    Parameter("include_stop_str_in_output", (False,)),
    Parameter("skip_special_tokens", (True,)),
    Parameter("spaces_between_special_tokens", (True, False)),
    Parameter("detokenize", (True,), "logprobs has the tokens"),
    Parameter("early_stopping", (False,)),
    Parameter("prompt_logprobs"),
    Parameter("truncate_prompt_tokens"),
    Parameter("priority", (0,)),
    Parameter("add_generation_prompt", (True,), _CHATS, chats_have=True),
    Parameter("continue_final_message", (False,), _CHATS, chats_have=True),
    Parameter("add_special_tokens", (True,), chat=(False,)),
    Parameter("return_tokens_as_token_ids", (False,)),
    Parameter("return_token_ids", (False,)),
    Parameter("include_reasoning", (True,)),
    Parameter("thinking_token_budget", (-1,), _CHATS, chats_have=True),
    Parameter("watermarking", (False,)),
    Parameter("return_token_offsets", (False,)),
    Parameter("return_prompt_text", (False,)),
    Parameter("routed_experts_prompt_start", (0,)),
    Parameter("stream_interval", (1,), _POLICY),
    *_absent("documents", "logits_processors", empty=[]),
    *_absent("chat_template", instead=_POLICY),
    *_absent("vllm_xargs", "mm_processor_kwargs", "media_io_kwargs", "kv_transfer_params", "ec_transfer_params",
             empty={}),
    *_absent("structural_tag", instead="structured_outputs takes a grammar"),
    *_absent("logprob_token_ids", "prompt_embeds", "repetition_detection"),
    *_absent("request_id", instead="an answer's x-request-id names it"),
    *_idle("guided_decoding_backend", "guided_whitespace_pattern", "cache_salt", "session_id",
           "truncation_side", "return_mm_kwargs"),
]

_LLAMA_CPP = [
    Parameter("n_predict", becomes="max_tokens"),
    Parameter("cache_prompt", (True, False)),
    *(Parameter(name, off) for name, off in sampling.ELSEWHERE.items()),
    Parameter("penalize_nl", (True,)),
    Parameter("min_keep", (0, 1)),
    Parameter("n_keep", (0, -1)),
    Parameter("n_discard", (0,)),
    Parameter("n_indent", (0,)),
    Parameter("n_probs", (0,), "use logprobs and top_logprobs"),
    Parameter("post_sampling_probs", (False,)),
    Parameter("id_slot", (-1,)),
    Parameter("slot_id", (-1,)),
    Parameter("n_cache_reuse", (0,)),
    Parameter("n_cmpl", becomes="n"),
    Parameter("t_max_predict_ms", (0, -1)),
    Parameter("t_max_prompt_ms", (0, -1)),
    Parameter("return_tokens", (False,)),
    Parameter("return_progress", (False,)),
    Parameter("timings_per_token", (False,)),
    Parameter("context_shift", (False,)),
    Parameter("grammar_lazy", (False,)),
    Parameter("reasoning_format", ("none", "auto", "deepseek"), _CHATS, chats_have=True),
    Parameter("thinking_forced_open", (False,)),
    Parameter("reasoning_budget", (-1,), _CHATS, chats_have=True),
    Parameter("sse_ping_interval", (), _POLICY),
    Parameter("parse_tool_calls", (True,), "tool_choice = \"none\" lets a model call none"),
    *_absent("image_data", "lora", "grammar_triggers", "preserved_tokens", "response_fields", empty=[]),
    Parameter("sampler_priority", becomes="samplers"),
    *_idle(*sampling.IDLE_ELSEWHERE),
]

_OLLAMA = [
    Parameter("num_predict", becomes="max_tokens"),
    Parameter("num_ctx", (), f"{_POLICY}: max_model_len in /v1/models tells the context length"),
    Parameter("n_ctx", (), f"{_POLICY}: max_model_len in /v1/models tells the context length"),
    Parameter("options", ({},), "send its entries as parameters of the request, such as temperature and max_tokens"),
    Parameter("think", (), _THINK),
    Parameter("num_keep", (0, -1)),
    Parameter("penalize_newline", (True,)),
    Parameter("raw", (False,)),
    Parameter("truncate", (False,)),
    Parameter("shift", (False,)),
    Parameter("system", ("",), "send a message with the role system"),
    Parameter("template", ("",), _POLICY),
    Parameter("context", ([],), "send earlier turns as messages"),
    Parameter("images", ([],)),
    *_idle("keep_alive"),
]

_OTHERS = [
    Parameter("random_seed", becomes="seed"),
    Parameter("cfg_negative_prompt", becomes="negative_prompt"),
    Parameter("max_new_tokens", becomes="max_tokens"),
    Parameter("max_length", (), "use max_tokens, which does not count the prompt"),
    Parameter("max_output_tokens", becomes="max_tokens"),
    Parameter("do_sample", (True,), "use temperature = 0"),
    Parameter("stop_sequences", becomes="stop"),
    Parameter("num_return_sequences", becomes="n"),
    Parameter("num_beams", (1,)),
    Parameter("return_full_text", (False,)),
    Parameter("details", (False,)),
    Parameter("decoder_input_details", (False,)),
    Parameter("watermark", (False,)),
    Parameter("top_n_tokens", (0,), "use top_logprobs"),
    Parameter("no_repeat_ngram_size", (0,)),
    Parameter("encoder_repetition_penalty", (1,)),
    Parameter("smoothing_factor", (0,)),
    Parameter("safe_prompt", (False,)),
    Parameter("prompt_mode"),
    Parameter("enable_thinking", (), _THINK),
    Parameter("thinking", (), _THINK),
    Parameter("reasoning", (), _THINK),
    Parameter("extra_body", ({},), "send its entries as parameters of the request"),
    Parameter("penalty_alpha", (0,)),
    Parameter("no_stop_trim", (False,)),
    Parameter("separate_reasoning", (True,), "reasoning_format = \"none\" leaves thoughts in the content"),
    Parameter("usage", ({"include": True}, {"include": False}), "use stream_options.include_usage"),
    *_absent("models", "plugins", "transforms", empty=[]),
    *_absent("provider", empty={}),
    *_idle("stream_reasoning", "ttl"),
]

TABLE: dict[str, Parameter] = {row.name: row for row in (*_OPENAI, *_VLLM, *_LLAMA_CPP, *_OLLAMA, *_OTHERS)}

# Names of a model's thoughts: of DeepSeek and llama.cpp; of OpenRouter and vLLM; of Ollama.
THOUGHTS = ("reasoning_content", "reasoning", "thinking")

# Accepted with any value and discarded: they say who asks, and no answer depends on them.
DROPPED = frozenset({"user", "metadata", "safety_identifier", "prompt_cache_key"})

# Values of declared parameters that say what happens where they are absent.
UNSET: dict[str, tuple[Any, ...]] = {
    "max_tokens": (-1,), "max_completion_tokens": (-1,),  # no bound but the policy's
    "thinking_token_budget": (-1,), "reasoning_budget": (-1,), "reasoning_format": ("auto", "deepseek"),
    "stop": ("", []), "samplers": ([], ""), "n": (1,),
    "logit_bias": ([],),  # llama.cpp writes the bias as a list of pairs
    "response_format": ({"type": "text"},), "grammar": ("",), "format": ("",), "ebnf": ("",), "regex": ("",),
}

# Where the value that is absent depends on the endpoint.
UNSET_BY_ENDPOINT: dict[Endpoint, dict[str, tuple[Any, ...]]] = {
    "chat": {},
    "completions": {"suffix": ("",), "logprobs": (False,), "top_logprobs": (0,), "chat_template_kwargs": ({},)},
}


def same(value: Any, other: Any) -> bool:
    """Whether two values of JSON are one: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, bool) or isinstance(other, bool):
        return value is other
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(same, value, other))
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(same(value[key], other[key]) for key in value)
    return bool(value == other)


# Declared parameters that ask for one thing, each in its own form
TOGETHER = (
    ("thinking_token_budget", "reasoning_budget"),
    ("tools", "functions"), ("tool_choice", "function_call"),
    ("response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
     "grammar", "json_schema", "regex", "ebnf", "format"))


def names_of(name: str) -> Iterator[str]:
    """Every name of a parameter: a policy that drops one of them drops all."""
    own = TABLE[name].becomes if name in TABLE else None
    target = own or name
    yield from next((names for names in TOGETHER if target in names), (target,))
    yield from (row.name for row in TABLE.values() if row.becomes == target)


def settle(document: dict[str, Any], endpoint: Endpoint) -> None:
    """Take out of a request what changes nothing, and give the rest the names of this service.

    RequestError names the first parameter of the table whose value this service does not support.
    """
    for name in DROPPED:
        document.pop(name, None)
    for row in [TABLE[name] for name in TABLE if name in document]:
        if row.chats_have if endpoint == "chat" else row.texts_have:
            continue
        value = document.pop(row.name)
        if row.becomes is not None:
            _rename(document, row.name, row.becomes, value)
        elif not row.allows(value, endpoint):
            raise row.refusal(endpoint)
    for name, values in (*UNSET.items(), *UNSET_BY_ENDPOINT[endpoint].items()):
        if name in document and any(same(document[name], each) for each in values):
            del document[name]
    if "best_of" in document and same(document["best_of"], document.get("n", 1)):
        del document["best_of"]
    if document.get("add_generation_prompt") is True and document.get("continue_final_message") in (None, False):
        del document["add_generation_prompt"]


def _rename(document: dict[str, Any], name: str, target: str, value: Any) -> None:
    if value is None:
        return
    if document.get(target) is not None and not same(document[target], value):
        raise RequestError("invalid_value", f"{name} and {target} differ; here they are one parameter", param=name)
    document[target] = value


def spelled(paths: Iterable[str]) -> set[str]:
    """The paths of fields that a policy drops, by every name of the field."""
    return {before + dot + each for path in paths for before, dot, name in [path.rpartition(".")]
            for each in (names_of(name) if not before else THOUGHTS if _is_thought(before, name) else [name])}


def _is_thought(before: str, name: str) -> bool:
    return before == "messages" and name in THOUGHTS
