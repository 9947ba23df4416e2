"""The families that run: one card each, which says in what its models differ from llama's. `card`
has the fields.

A card's name is `general.architecture` of its files. Then come the source of its arithmetic, and
well-known models for a message. A new family is a row here.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from appliance.families.card import COMMON, SILENT, Attend, Experts, Family, Rotary, but
from appliance.families.names import ATTENTION_NORM, EXPERTS, KEY, LAST_NORM, MATRICES, QUERY, VALUE

_WINDOW, _PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"
_ALL, _QKV = frozenset(MATRICES), frozenset({QUERY, KEY, VALUE})  # matrices with biases
_GATE_UP = frozenset({"gate_up"})
_KV_HEADS, _CONVOLVED = frozenset({"attention.head_count_kv"}), frozenset({"shortconv.l_cache"})
_WIDTHS = frozenset({"feed_forward_length"})
_OWN_WIDTH = frozenset({"expert_feed_forward_length"})  # of experts: readers would guess it

# Kinds of layers: how heads are turned, and whether they have a window.
_HALVES, _UNTURNED, _WINDOWED = Attend(Rotary("halves")), Attend(None), Attend(Rotary("halves"), window=_WINDOW)
_SWA = "rope.freq_base_swa"  # the base of layers with a window, where they have one of their own
_LOCAL = Attend(Rotary("halves", (_SWA,), scaled=False), window=_WINDOW)

# The traits of families with delta rules.
_DELTA: dict[str, Any] = {
    "recurrent": "delta", "output_gate": True, "head_norm": "head", "partial": True,
    "feed_forward_norm": "post_attention_norm", "predictors": "nextn_predict_layers", "guesses": True,
    "must": frozenset({"ssm.state_size", "ssm.group_count", "ssm.time_step_rank", "ssm.conv_kernel", "ssm.inner_size"})}

FAMILIES = MappingProxyType({family.name: family for family in (
    Family("llama", "llama.cpp: src/models/llama.cpp; transformers: modeling_mixtral.py",
           "Llama 2 and 3, TinyLlama, SmolLM2, Mistral 7B without window, Mixtral",
           biases=_ALL, experts=Experts(always=False)),
    Family("qwen2", "llama.cpp: src/models/qwen2.cpp; transformers: modeling_qwen2.py",
           "Qwen2.5, Qwen2.5-Coder, DeepSeek-R1-Distill-Qwen",
           layers=(_HALVES,), biases=_QKV, output_bias=True),
    Family("qwen3", "llama.cpp: src/models/qwen3.cpp; transformers: modeling_qwen3.py", "Qwen3 from 0.6B to 32B",
           layers=(_HALVES,), head_norm="head"),
    Family("qwen3moe", "llama.cpp: src/models/qwen3moe.cpp; transformers: modeling_qwen3_moe.py",
           "Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder-30B-A3B",
           layers=(_HALVES,), head_norm="head", experts=Experts(), must=_OWN_WIDTH),
    Family("qwen2moe", "llama.cpp: src/models/qwen2moe.cpp; transformers: modeling_qwen2_moe.py",
           "Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B",
           layers=(_HALVES,), biases=_QKV, experts=Experts(normalised=False, shared="gated"), must=_OWN_WIDTH),
    Family("olmoe", "llama.cpp: src/models/olmoe.cpp; transformers: modeling_olmoe.py", "OLMoE-1B-7B",
           layers=(_HALVES,), head_norm="row", experts=Experts(normalised=False)),
    # Five layers with a window and a base of their own, then a layer that sees all. In a file
    # without a window, as Rnj-1's, all layers turn heads as the last ones do. Weights of norms have
    # their 1 in the file.
    Family("gemma3", "llama.cpp: src/models/gemma3.cpp; transformers: modeling_gemma3.py",
           "Gemma 3 from 270M to 27B, Rnj-1",
           topology="sandwich", layers=(*[_LOCAL] * 5, _HALVES), windowless=(_HALVES,), pattern=_PATTERN,
           head_norm="head", activation="gelu", embedding_scale="sqrt(embedding)",
           query_scale="1/sqrt(share) at 62 layers", logit_cap="final_logit_softcapping", neutral=but(_WINDOW)),
    # Heads of two sizes, values that are normalised and may be the keys, a factor for each layer.
    # Models with shared keys or embeddings for each layer are refused by their keys.
    Family("gemma4", "llama.cpp: src/models/gemma4.cpp; transformers: modeling_gemma4.py", "Gemma 4 31B and 26B-A4B",
           topology="sandwich",
           layers=(*[Attend(_LOCAL.rotary, window=_WINDOW, sizes="_swa")] * 5, _HALVES), pattern=_PATTERN,
           head_norm="head", value_norm=True, value_is_key=True, partial=True, activation="gelu", layer_scale=True,
           arrays=frozenset({"attention.head_count", "attention.head_count_kv", "feed_forward_length"}),
           embedding_scale="sqrt(embedding)", query_scale="1", logit_cap="final_logit_softcapping",
           experts=Experts(always=False, beside=True), must=frozenset({_WINDOW}),
           neutral={**but(_WINDOW), "attention.shared_kv_layers": (0,), "embedding_length_per_layer_input": (0,)}),
    # The window is the publisher's (`sliding_window` of its configuration); llama.cpp leaves it
    # out.
    Family("phi3", "transformers: modeling_phi3.py; llama.cpp: src/models/phi3.cpp, which has no window",
           "Phi-3.5, Phi-4, Phi-4-mini",
           layers=(_WINDOWED,), fused=_GATE_UP | {"qkv"}, partial=True, long_factors=True, neutral=but(_WINDOW)),
    Family("phi2", "llama.cpp: src/models/phi2.cpp; transformers: modeling_phi.py", "Phi-1.5, Phi-2",
           norm="layer", norm_bias=True, topology="parallel", layers=(_HALVES,), partial=True, activation="gelu",
           gated=False, biases=_ALL, output_bias=True),
    Family("gpt2", "llama.cpp: src/models/gpt2.cpp; transformers: modeling_gpt2.py", "GPT-2",
           norm="layer", norm_bias=True, layers=(_UNTURNED,), places=True, fused=frozenset({"qkv"}),
           activation="gelu", gated=False, biases=_ALL),
    # Queries grow with the logarithm of their position.
    Family("mistral3", "llama.cpp: src/models/mistral3.cpp; transformers: modeling_ministral3.py",
           "Ministral 3, Devstral 2",
           layers=(Attend(window=_WINDOW),), biases=_ALL, query_scale="attention.scale",
           query_temperature="attention.temperature_scale",
           neutral=but("attention.scale", _WINDOW, "rope.scaling.yarn_log_multiplier")),
    Family("granite", "llama.cpp: src/models/granite.cpp; transformers: modeling_granite.py",
           "Granite 3.3, Granite 4 dense",
           biases=_ALL, switch="rope.scaling.finetuned", embedding_scale="embedding_scale",
           query_scale="attention.scale", residual_scale="residual_scale", logit_scale="/logit_scale",
           neutral=but("attention.scale"), silent=frozenset()),
    # As Granite, with experts.
    Family("granitemoe", "transformers: modeling_granitemoe.py, modeling_granitemoeshared.py; llama.cpp: "
           "src/models/granite.cpp", "Granite 3.1 1B-A400M and 3B-A800M",
           switch="rope.scaling.finetuned", embedding_scale="embedding_scale", query_scale="attention.scale",
           residual_scale="residual_scale", logit_scale="/logit_scale", experts=Experts("chosen", shared="plain"),
           neutral=but("attention.scale"), silent=frozenset()),
    Family("smollm3", "llama.cpp: src/models/smollm3.cpp; transformers: modeling_smollm3.py", "SmolLM3 3B",
           layers=(*[Attend()] * 3, _UNTURNED), biases=_QKV),
    # In OLMo 3 three of four layers have a window, and their heads are turned without scaling.
    Family("olmo2", "llama.cpp: src/models/olmo2.cpp; transformers: modeling_olmo2.py, modeling_olmo3.py",
           "OLMo 2, OLMo 3",
           topology="post",
           layers=(*[Attend(Rotary("halves", (_SWA, "rope.freq_base"), scaled=False), window=_WINDOW)] * 3, _HALVES),
           windowless=(_HALVES,), pattern=_PATTERN, head_norm="row", neutral=but(_WINDOW)),
    # In the models with windows three of four layers have one, and the fourth leaves heads as they
    # are.
    Family("exaone4", "llama.cpp: src/models/exaone4.cpp; transformers: modeling_exaone4.py", "EXAONE 4 1.2B and 32B",
           topology="post", layers=(*[_WINDOWED] * 3, _UNTURNED), windowless=(_HALVES,), pattern=_PATTERN,
           head_norm="head", neutral=but(_WINDOW)),
    # Dense. The text part of GLM-4.1V has sections of positions, and rows of heads in the order of
    # halves.
    Family("glm4", "llama.cpp: src/models/glm4.cpp; transformers: modeling_glm4.py", "GLM-4-9B-0414, GLM-4-32B-0414",
           topology="sandwich", sectioned=(_HALVES,), partial=True, fused=_GATE_UP, biases=_QKV),
    # Only the larger ones have head norms. The last layer guesses a further token.
    Family("glm4moe", "transformers: modeling_glm4_moe.py; llama.cpp: src/models/glm4-moe.cpp",
           "GLM-4.5, GLM-4.5-Air, GLM-4.6",
           layers=(_HALVES,), partial=True, biases=_QKV, head_norm="head", head_norm_always=False,
           feed_forward_norm="post_attention_norm", experts=Experts("sigmoid", shared="plain", biased=True),
           predictors="nextn_predict_layers", guesses=True),
    # In 40B attention has a norm of its own. GELU is by the hyperbolic tangent, as in llama.cpp;
    # the publisher's is by the error function.
    Family("falcon", "llama.cpp: src/models/falcon.cpp", "Falcon 7B and 40B",
           norm="layer", norm_bias=True, topology="parallel", layers=(_HALVES,), second_norm=True,
           fused=frozenset({"qkv"}), activation="gelu", gated=False,
           neutral={**but("tensor_data_layout"), "tensor_data_layout": ("jploski",)}),
    Family("starcoder2", "llama.cpp: src/models/starcoder2.cpp; transformers: modeling_starcoder2.py",
           "StarCoder2 from 3B to 15B",
           norm="layer", norm_bias=True, layers=(_WINDOWED,), activation="gelu", gated=False, biases=_ALL,
           neutral=but(_WINDOW)),
    Family("command-r", "llama.cpp: src/models/command-r.cpp; transformers: modeling_cohere.py",
           "Command-R 35B, Aya 23",
           norm="layer", topology="parallel", logit_scale="logit_scale", biases=_QKV),
    # As Command-R, with windows: every fourth layer sees all and leaves heads as they are.
    Family("cohere2", "llama.cpp: src/models/cohere2.cpp; transformers: modeling_cohere2.py",
           "Command-R7B, Command A",
           norm="layer", topology="parallel", layers=(*[Attend(window=_WINDOW)] * 3, _UNTURNED), pattern=_PATTERN,
           logit_scale="logit_scale", must=frozenset({_WINDOW}), neutral=but(_WINDOW)),
    # Weights of norms have their 1 in the file.
    Family("gemma", "llama.cpp: src/models/gemma.cpp; transformers: modeling_gemma.py", "Gemma 2B and 7B, CodeGemma",
           layers=(_HALVES,), activation="gelu", embedding_scale="sqrt(embedding)"),
    # Sections of a head are turned by positions in time, height and width, which are equal in a
    # text.
    Family("qwen2vl", "llama.cpp: src/models/qwen2vl.cpp; transformers: modeling_qwen2_vl.py",
           "the text part of Qwen2-VL and Qwen2.5-VL",
           layers=(_HALVES,), sectioned=(_HALVES,), biases=_QKV),
    # Elements of a head take turns in being turned so. The first layers get nothing from images.
    Family("qwen3vl", "llama.cpp: src/models/qwen3vl.cpp; transformers: modeling_qwen3_vl.py",
           "the text part of Qwen3-VL",
           layers=(_HALVES,), sectioned=(_HALVES,), head_norm="head", silent=SILENT | {"n_deepstack_layers"}),
    Family("qwen3vlmoe", "llama.cpp: src/models/qwen3vlmoe.cpp; transformers: modeling_qwen3_vl_moe.py",
           "the text part of Qwen3-VL-30B-A3B",
           layers=(_HALVES,), sectioned=(_HALVES,), head_norm="head", experts=Experts(), must=_OWN_WIDTH,
           silent=SILENT | {"n_deepstack_layers"}),
    # The norm before the feed-forward network has the name of one behind attention.
    Family("seed_oss", "llama.cpp: src/models/seed-oss.cpp; transformers: modeling_seed_oss.py", "Seed-OSS 36B",
           layers=(_HALVES,), biases=_QKV, feed_forward_norm="post_attention_norm"),
    # Every second layer has a window. The publisher's YaRN blends from a fraction of a pair on;
    # llama.cpp rounds it. The norm before the feed-forward network has the name of one behind
    # attention.
    Family("gpt-oss", "transformers: modeling_gpt_oss.py; llama.cpp: src/models/openai-moe.cpp, which rounds YaRN's "
           "pairs", "gpt-oss 20B and 120B",
           layers=(_WINDOWED, _HALVES), pattern=_PATTERN, yarn_whole=False, sinks=True, activation="swiglu_oai",
           biases=_ALL | frozenset(EXPERTS), feed_forward_norm="post_attention_norm", experts=Experts("chosen"),
           must=frozenset({_WINDOW}) | _OWN_WIDTH, neutral=but(_WINDOW)),
    Family("ernie4_5", "llama.cpp: src/models/ernie4-5.cpp; transformers: modeling_ernie4_5.py", "ERNIE 4.5 0.3B",
           biases=_QKV),
    Family("ernie4_5-moe", "transformers: modeling_ernie4_5_moe.py; llama.cpp: src/models/ernie4-5-moe.cpp",
           "ERNIE 4.5 21B-A3B",
           experts=Experts(least=1e-12, shared="plain", biased=True),
           neutral={**COMMON, "interleave_moe_layer_step": (0, 1)}),
    # Groups of experts are masked as its publisher does.
    Family("bailingmoe2", "inclusionAI: modeling_bailing_moe_v2.py; llama.cpp: src/models/bailingmoe2.cpp",
           "Ling 2.0 mini and flash, Ring 2.0",
           layers=(_HALVES,), partial=True, fused=frozenset({"qkv"}), head_norm="head",
           experts=Experts("sigmoid", shared="plain", biased=True), predictors="nextn_predict_layers"),
    # Files of before the factors were written are refused: they would be guessed.
    Family("minicpm", "llama.cpp: src/models/minicpm.cpp", "MiniCPM 1B and 2B, MiniCPM4 0.5B and 8B",
           long_factors=True, embedding_scale="embedding_scale", residual_scale="residual_scale",
           logit_scale="/logit_scale", must=frozenset({"embedding_scale", "residual_scale", "logit_scale"})),
    # Layers without key-value heads have a short convolution.
    Family("lfm2", "transformers: modeling_lfm2.py; llama.cpp: src/models/lfm2.cpp",
           "LFM2 and LFM2.5 from 350M to 2.6B",
           layers=(_HALVES,), head_norm="head", recurrent="convolution", output_norm=LAST_NORM, arrays=_KV_HEADS,
           must=_CONVOLVED),
    Family("lfm2moe", "transformers: modeling_lfm2_moe.py; llama.cpp: src/models/lfm2.cpp, which adds nothing to the "
           "sum of weights", "LFM2-8B-A1B, LFM2-24B-A2B",
           layers=(_HALVES,), head_norm="head", recurrent="convolution", output_norm=LAST_NORM, arrays=_KV_HEADS,
           experts=Experts("sigmoid", added=1e-6, biased=True), must=_CONVOLVED | _OWN_WIDTH),
    # Three of four layers keep a state. The norm before the feed-forward network has the name of
    # one behind attention. The last layer guesses a further token.
    Family("qwen35", "transformers: modeling_qwen3_5.py; llama.cpp: src/models/qwen35.cpp",
           "Qwen3.5, Qwen3.6 and Qwen3.8 from 0.8B to 27B, their text part",
           layers=(_HALVES,), sectioned=(_HALVES,), **_DELTA),
    Family("qwen35moe", "transformers: modeling_qwen3_5_moe.py; llama.cpp: src/models/qwen35moe.cpp",
           "Qwen3.5-35B-A3B and Qwen3.6-35B-A3B, their text part",
           layers=(_HALVES,), sectioned=(_HALVES,), experts=Experts(shared="gated"), **_DELTA),
    Family("qwen3next", "transformers: modeling_qwen3_next.py; llama.cpp: src/models/qwen3next.cpp",
           "Qwen3-Next-80B-A3B", layers=(_HALVES,), together=True, experts=Experts(shared="gated"), **_DELTA),
    Family("arcee", "llama.cpp: src/models/arcee.cpp; transformers: modeling_arcee.py", "AFM 4.5B",
           activation="relu2", gated=False, biases=_QKV),
    # Weights of norms have their 1 in the file.
    Family("nemotron", "llama.cpp: src/models/nemotron.cpp; transformers: modeling_nemotron.py",
           "Minitron 4B and 8B, Nemotron-4",
           norm="layer", norm_bias=True, layers=(_HALVES,), partial=True, activation="relu2", gated=False, biases=_ALL),
    # Layers without key-value heads have Mamba-2. The file says whether heads are turned.
    Family("granitehybrid", "transformers: modeling_granitemoehybrid.py; llama.cpp: src/models/granite-hybrid.cpp",
           "Granite 4 H: 350M, 1B, Micro, Tiny, Small; Bamba",
           switch="rope.scaling.finetuned", recurrent="mamba", embedding_scale="embedding_scale",
           query_scale="attention.scale", residual_scale="residual_scale", logit_scale="/logit_scale",
           arrays=_KV_HEADS, experts=Experts("chosen", always=False, shared="plain"), must=_KV_HEADS,
           neutral=but("attention.scale"), silent=frozenset()),
    # A layer has Mamba-2, attention or a network. `time_step_min` of the publisher's configuration
    # is not in files; neither llama.cpp nor the publisher's kernels take it for a bound.
    Family("nemotron_h", "transformers: modeling_nemotron_h.py; llama.cpp: src/models/nemotron-h.cpp",
           "Nemotron-H 4B and 8B, Nemotron Nano 9B v2",
           layers=(_UNTURNED,), recurrent="mamba", single=True, activation="relu2", gated=False,
           feed_forward_norm=ATTENTION_NORM, arrays=_KV_HEADS | _WIDTHS, must=_KV_HEADS | _WIDTHS,
           silent=SILENT | {"attention.layer_norm_epsilon"}),
    Family("nemotron_h_moe", "transformers: modeling_nemotron_h.py; llama.cpp: src/models/nemotron-h.cpp",
           "Nemotron 3 Nano 30B-A3B",
           layers=(_UNTURNED,), recurrent="mamba", single=True, activation="relu2", gated=False,
           feed_forward_norm=ATTENTION_NORM, arrays=_KV_HEADS | _WIDTHS,
           experts=Experts("sigmoid", shared="plain", biased=True), predictors="nextn_predict_layers",
           must=_KV_HEADS | _WIDTHS | _OWN_WIDTH, silent=SILENT | {"attention.layer_norm_epsilon"}),
)})
