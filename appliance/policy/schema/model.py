"""The `model` block: which model runs, and how."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from appliance.policy.schema.base import Block, Enforcers, Field
from appliance.policy.schema.identifiers import NAME, FreeText, Hash, OneOf, Path, TaggedHex
from appliance.policy.schema.keys import KeySource
from appliance.policy.schema.kinds import Duration, ListOf, Number, Pick, Size, Switch, Whole
from appliance.policy.schema.sampling import SamplingBounds
from appliance.policy.schema.versions import Since, Was

StreamingDecrypt = Literal[True, False, "auto"]
Load = Literal["always", "boot", "demand"]


class Publisher(Block):
    """The publisher who vouches for the model: an Ed25519 signature over its pin, raw or as an
    OpenSSF model-signing bundle."""

    public_key: Annotated[str, OneOf((
        TaggedHex("ed25519", 32), TaggedHex("p256", 33), TaggedHex("p384", 49), TaggedHex("p521", 67)))] = Field(
        was=Was(1, TaggedHex("ed25519", 32), "The publisher's public key.", "use an Ed25519 key"),
        enforced_by="keys/policy_keys", description="The publisher's public key. A bundle's may be on a curve of "
        "NIST: then it is the compressed point. It is also the certificate's, where the bundle has one.")
    signature: Annotated[str | None, TaggedHex("ed25519", 64, "signature")] = Field(
        default=None, enforced_by="keys/policy_keys", description="The signature over the pin; or else `bundle`.")
    bundle: Annotated[str | None, Path()] = Field(
        default=None, enforced_by="keys/policy_keys", enforced_since=2, description="The signature bundle's file, "
        "beside the model; or else `signature`.")
    root_sha256: Annotated[str | None, Hash(256)] = Field(
        default=None, since=Since(2), enforced_by="keys/policy_keys", description="SHA-256 of the DER bytes of "
        "the certificate that the bundle's chain must end in; absent: the key alone counts.")
    identity: Annotated[str | None, FreeText(1, 256)] = Field(
        default=None, since=Since(2), enforced_by="keys/policy_keys", description="A name that the bundle's "
        "certificate must have: an address, a URI, a host or its common name. It needs `root_sha256`.")


class PrefixCache(Block):
    """Keys and values of a tenant's earlier texts, kept in locked memory, so that a text with the
    same beginning need not be read again. Each tenant finds its own texts only. Answers are the
    same to the bit; the time to the first token is shorter, and `usage` tells by how many tokens.
    """

    size_bytes: Annotated[int, Size("1MiB", "64TiB")] = Field(
        alias="size", enforced_by=("boot/planning/footprint", "boot/running/load"), description="Memory for it, beside "
        "that of running answers. The tenants who may ask the model have fixed shares by their weights; within a "
        "share the pages go first that were used longest ago.")
    lifetime_ms: Annotated[int, Duration("1s", "1d")] = Field(
        alias="lifetime", default=600_000, enforced_by="service/parts/models",
        description="How long a page is kept after its "
        "last use, on the monotonic clock; then it is wiped.")


class ModelLimits(Block):
    """Bounds of one model's requests within those of `limits`, and the default for answers.
    Defaults of sampling stand in `sampling`."""

    ENFORCED_BY: ClassVar[Enforcers] = "service/answering/lengths"

    prompt_tokens: Annotated[int | None, Whole(1, 16_777_216)] = Field(
        default=None, description="The longest prompt, in tokens; absent: as `limits` has it.")
    generation_tokens: Annotated[int | None, Whole(1, 16_777_216)] = Field(
        default=None, description="The longest answer, in tokens; absent: as `limits` has it.")
    max_tokens_default: Annotated[int | None, Whole(1, 16_777_216)] = Field(
        default=None, description="Most tokens of an answer where a request says nothing; absent: the longest "
        "answer.")


class Alias(Block):
    """A name that requests may give for a model, so that another model can take its place without
    a change of clients. Answers, receipts and records name the model itself."""

    LABEL: ClassVar[str | None] = "name"

    name: Annotated[str, NAME] = Field(description="The name in requests and in `/v1/models`.")
    models: Annotated[tuple[str, ...], ListOf(NAME, 1, 16)] = Field(
        enforced_by="service/parts/models", description="The models that it stands for. The first one answers that is "
        "loaded and that the tenant may ask.")


class RopeScaling(Block):
    """Positions beyond those of the model's file, by YaRN (arXiv 2309.00071), where its publisher
    says so. Answers to short texts change a little, too. A file that scales its positions itself is
    refused."""

    factor: Annotated[float, Number(1, 256)] = Field(
        enforced_by="boot/planning/footprint", description="How many times as many positions "
        "there are. `context_length` bounds them still.")
    original_context: Annotated[int | None, Whole(1, 16_777_216)] = Field(
        default=None, enforced_by="boot/planning/footprint", description="The positions that "
        "the model was trained on; absent: those of its file.")


class Model(Block):
    """A model that the appliance serves. The label is the name by which requests ask for it."""

    LABEL: ClassVar[str | None] = "name"

    name: Annotated[str, NAME] = Field(description="The name in requests and in `/v1/models`.")
    file: Annotated[str, Path()] = Field(
        enforced_by="boot/checks", description="The GGUF or sealed file, in the policy's folder or in the model "
        "folder. The disk is not trusted: the pins decide.")
    sha256: Annotated[str, Hash(256)] = Field(
        enforced_by="boot/running/load", description="SHA-256 of the plaintext GGUF file (`appliance model pin FILE` "
        "prints it).")
    shards: Annotated[tuple[str, ...] | None, ListOf(Hash(256), 2, 512)] = Field(
        since=Since(2), default=None, enforced_by="boot/running/load", description="SHA-256 of each file of a sharded "
        "model, in their order; `file` is the first of them. `sha256` is then that of the text which has these "
        "digests, each on a line of its own.")
    sealed_header_sha256: Annotated[str | None, Hash(256)] = Field(
        default=None, enforced_by="boot/running/load", description="SHA-256 of the sealed file's header; makes the "
        "model a sealed one. The plaintext pin stays: a header alone would let another model under the same key be "
        "swapped in.")
    load: Annotated[Load, Pick(("always", "boot", "demand"))] = Field(
        since=Since(2, "always"), default="always", enforced_by="boot/running/declared", description="When the model "
        "is loaded. `\"always\"`: at boot, and it stays. `\"boot\"`: at boot; a key with the role `admin` may have it "
        "unloaded, and loaded again. `\"demand\"`: not before such a key asks for it. Each change is a new generation.")
    publisher: Publisher | None = Field(default=None, description="A signature that must verify before the model runs.")
    key: KeySource | None = Field(default=None, description="Where the key of a sealed model comes from.")
    streaming_decrypt: Annotated[StreamingDecrypt, Pick((True, False, "auto"))] = Field(
        default="auto", enforced_by="boot/running/load", description="`true`: plaintext weights never exceed "
        "`plaintext_budget`, whatever memory there is. `false`: resident, or refuse to boot. `\"auto\"`: resident as "
        "far as the memory budget goes.")
    access_pattern: Annotated[Literal["hidden", "oblivious", "leaks"], Pick(("hidden", "oblivious", "leaks"))] = Field(
        default="hidden", enforced_by="boot/running/load", was=Was(1, Pick(("hidden", "leaks")), (
            "`\"leaks\"` accepts that the operator of the disk sees which embedding rows and experts are read, which "
            "tells what the text is about, for speed.")),
        description="The reads that no text may change. `\"hidden\"`: those of the disk. Experts are in locked "
        "memory, decrypted or not, or each pass reads all of them. `\"oblivious\"`: also those of the memory that "
        "a pass works in. Each pass decrypts all embeddings and experts in one order, and multiplies each row with all "
        "experts, which takes its time; it needs `streaming_decrypt = true`. `\"leaks\"`: none. The operator of the "
        "disk sees which embedding rows and experts are read, which tells what the text is about. Every verdict and "
        "receipt says so.")
    context_length: Annotated[int, Whole(1, 16_777_216)] = Field(
        default=32_768, enforced_by="boot/planning/footprint", description="Upper bound on the context in tokens; the "
        "model's own limit holds where lower.")
    rope: RopeScaling | None = Field(
        since=Since(2), default=None, description="A longer context than the file's; absent: the file's own.")
    limits: ModelLimits | None = Field(
        since=Since(2), default=None, description="Bounds and defaults of the model's answers; absent: those of all.")
    kv_cache: Annotated[Literal["f16", "q8", "q4", "q8q4"], Pick(("f16", "q8", "q4", "q8q4"))] = Field(
        default="f16", enforced_by="boot/running/load", was=Was(1, Pick(("f16", "q8", "q4")), (
            "How keys and values are kept: 16, 8 or 4 bits each.")),
        description="How keys and values are kept: 16, 8 or 4 bits each. `\"q8q4\"`: keys with 8, and values with 4.")
    prefix_cache: PrefixCache | None = Field(
        since=Since(2), default=None, description="Keep keys and values for the next text with the same beginning; "
        "absent: everything is wiped when its answer ends.")
    draft_model: Annotated[str | None, NAME] = Field(
        default=None, enforced_by="boot/running/load", description="Another model of this policy that proposes tokens; "
        "the output stays the same.")
    speculation: Annotated[Literal["off", "hidden", "on", "heads"], Pick(("off", "hidden", "on", "heads"))] = Field(
        since=Since(2, "on"), default="on", enforced_by=("boot/running/load", "service/parts/models"),
        description="Whether tokens are guessed and several checked in one pass, which changes no answer. `\"on\"`: an "
        "answer's times show how well it is guessed. `\"hidden\"`: each pass gives an answer one token at most, as "
        "without guesses, and a slot is free earlier; it needs a `cadence`, and makes no guesses for a model whose "
        "layers keep a state. `\"off\"`: no guesses are made. `\"heads\"`: as `\"on\"`, and the model's own layer "
        "that guesses is loaded and makes some. Its file must have one; it goes with no `cadence` and no streaming.")
    sampling: SamplingBounds = Field(default_factory=SamplingBounds, description="Bounds on sampling parameters.")
    chat_template: Annotated[str | None, FreeText(1, 262_144)] = Field(
        default=None, enforced_by="boot/running/load", description="A Jinja chat template to use instead of the "
        "model's own.")
    chat_template_fallback: Annotated[Literal["refuse", "chatml"], Pick(("refuse", "chatml"))] = Field(
        default="refuse", enforced_by="boot/running/load", description="What to do with chats where neither the policy "
        "nor the model has a chat template: refuse them (the model then continues prompts only), or use ChatML.")
    tools: Annotated[bool, Switch()] = Field(
        since=Since(2, True), default=True, enforced_by="service/answering/admit", description="Whether requests may "
        "offer functions that the model calls (`tools`, `functions`).")
    structured_output: Annotated[bool, Switch()] = Field(
        since=Since(2, True), default=True, enforced_by="service/answering/admit", description="Whether requests may "
        "ask for answers by a JSON Schema, a pattern, a list of texts or a grammar (`response_format` and its like). "
        "Calls of tools are held to their own schemas in any case.")
    tokenization: Annotated[bool, Switch()] = Field(
        since=Since(2, False), default=False, enforced_by="service/answering/admit", description="Whether `/tokenize` "
        "and `/detokenize` tell the model's token ids, and how many a text has, whatever `token_count_rounding` says.")
    context_shift: Annotated[bool, Switch()] = Field(
        default=False, enforced_by=("service/answering/admit", "boot/planning/budget"),
        description="When the context is full, drop the oldest half of the conversation and go on; otherwise the "
        "generation ends with `length`.")
    session_persistence: Annotated[bool, Switch()] = Field(
        default=False, enforced_by="state/sessions", enforced_since=2, was=Was(
            1, description="Keep a conversation's KV cache, sealed, on the state disk between requests."),
        description="Keep the pages of `prefix_cache` on the state disk as well, sealed, so that a restart does not "
        "forget them. The disk needs as much room for them as memory does.")
