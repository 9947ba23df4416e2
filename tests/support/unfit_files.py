"""GGUF files that cannot run here, each with the words that say why: what kind it is, or what it asks for."""

from __future__ import annotations

from tests.support.ggufs import BOOL, F32, I32, STRING, U16, U32, Tensor, build, kv, kv_array

_WEIGHT = [Tensor("t", 0, (4,), bytes(16))]
_PATCH = Tensor("v.patch_embd.weight", 1, (2, 2, 3, 4), bytes(96))
_TOKENS = kv_array("tokenizer.ggml.tokens", STRING, ["a", "b"])


def _file(architecture: str | None, *keys: bytes, tensors: list[Tensor] | None = None) -> bytes:
    named = [] if architecture is None else [kv("general.architecture", STRING, architecture)]
    return build([*named, *keys], _WEIGHT if tensors is None else tensors)


def _llama(*keys: bytes, head: int = 32, tensors: list[Tensor] | None = None) -> bytes:
    """A model of the llama architecture whose metadata are complete."""
    sizes = (("block_count", 1), ("context_length", 64), ("embedding_length", 8 * head), ("feed_forward_length", 64),
             ("attention.head_count", 8), ("vocab_size", 2))
    return _file("llama", *(kv(f"llama.{name}", U32, value) for name, value in sizes),
                 kv("llama.attention.layer_norm_rms_epsilon", F32, 1e-5), *keys, tensors=tensors)


UNFIT: dict[str, tuple[bytes, str]] = {
    # what is no whole model, whatever its architecture says
    "second of two parts": (_file(None, kv("split.no", U16, 1), kv("split.count", U16, 2)), "part 2 of the 2 parts"),
    "first of three parts": (_file("qwen2", kv("split.no", U16, 0), kv("split.count", U16, 3)), "part 1 of the 3"),
    "projector": (_file("clip", kv("general.type", STRING, "mmproj"), tensors=[_PATCH]), "a projector (mmproj)"),
    "projector of before": (_file("clip", kv("clip.has_vision_encoder", BOOL, True), tensors=[_PATCH]), "a projector"),
    "adapter": (_file("llama", kv("general.type", STRING, "adapter"), kv("adapter.type", STRING, "lora")),
                "a LoRA adapter"),
    "adapter of qwen2": (_file("qwen2", kv("general.type", STRING, "adapter"), kv("adapter.type", STRING, "lora")),
                         "a LoRA adapter"),
    "adapter of before": (_file("llama", kv("adapter.type", STRING, "lora")), "a LoRA adapter"),
    "control vector": (_file("controlvector", kv("controlvector.model_hint", STRING, "llama")), "a control vector"),
    "importance matrix": (_file(None, kv("general.type", STRING, "imatrix")), "an importance matrix"),
    "vocabulary": (_file("qwen2", _TOKENS, tensors=[]), "a vocabulary without weights"),
    "other type": (_file("llama", kv("general.type", STRING, "Dataset")), "of the type 'dataset'"),
    "embeddings": (_file("nomic-bert"), "makes embeddings"),
    "speech": (_file("whisper"), "speech or sound"),
    "draft head": (_file("eagle3"), "a draft head"),
    # other architectures, whatever their tensors are
    "kimi-linear": (_file("kimi-linear"), "architecture is kimi-linear"),
    "gemma2": (_file("gemma2"), "architecture is gemma2"),
    "mxfp4": (_file("deepseek2", tensors=[Tensor("t", 39, (64, 2), bytes(68))]), "architecture is deepseek2"),
    "iq3_s of dbrx": (_file("dbrx", tensors=[Tensor("t", 21, (256, 1), bytes(110))]), "architecture is dbrx"),
    "template and all": (_file("phimoe", kv("tokenizer.chat_template", STRING, "{% broken")), "architecture is phimoe"),
    # features of ours
    "experts": (_llama(kv("llama.expert_count", U32, 8), kv("llama.expert_used_count", U32, 2),
                       kv("llama.expert_gating_func", U32, 2)), "llama.expert_gating_func is 2"),
    "pooling": (_llama(kv("llama.pooling_type", U32, 3)), "llama.pooling_type is 3"),
    "heads of 100": (_llama(head=100), "the head size, is 100, that of OpenLLaMA 3B"),
    "heads of 120": (_llama(head=120), "the head size, is 120, that of H2O Danube3 4B"),
    "heads of 72": (_llama(head=72), "the head size, is 72; allowed: multiples of 16 in 32..512"),
    # tensors, then the rest
    "iq3_s": (_llama(tensors=[Tensor("t", 21, (256, 1), bytes(110))]), "block format IQ3_S is not supported"),
    "no tensor of ours": (_llama(), "token_embd.weight is missing"),
}

# Files that cannot be read to their end. Metadata that name another architecture are the better reason.
CUT: dict[str, tuple[bytes, str]] = {
    "kimi-linear cut short": (_file("kimi-linear")[:-8], "architecture is kimi-linear"),
    "format of tomorrow": (_file("qwen9", tensors=[Tensor("t", 99, (4,), bytes(16))]), "architecture is qwen9"),
    "llama cut short": (_llama()[:-20], "4 bytes are missing"),
    "part cut short": (_file("llama", kv("split.count", I32, 2))[:-20], "one of 2 parts"),
}
