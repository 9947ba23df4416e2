"""The blocks on what leaves the appliance and how much may be asked of it: `privacy`, `limits`,
`audit`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from appliance.policy.schema.base import Block, Enforcers, Field
from appliance.policy.schema.identifiers import FIELD, NAME, FreeText, Hash, HttpsUrl, TaggedHex
from appliance.policy.schema.kinds import Duration, Pick, SetOf, Size, Switch, Whole
from appliance.policy.schema.patterns import BoundedRegex
from appliance.policy.schema.versions import Since, Was

_FIRST_DETECTORS = ("credit-card", "email", "iban", "ip-address", "phone", "secret")
DETECTORS = (
    *_FIRST_DETECTORS, "date-of-birth", "national-id", "br-cnpj", "br-cpf", "cn-resident-id", "de-steuer-id", "es-dni",
    "fr-nir", "in-aadhaar", "in-pan", "it-codice-fiscale", "uk-nhs", "uk-nino", "us-itin", "us-ssn")
"""The names of detectors, and of a group of them (`detectors/table.py`)."""


class TimingPadding(Block):
    """Answer times on a grid, so that the operator of the network learns little from them. A time
    is rounded up to the next multiple, then a random delay of at most `jitter` is added."""

    first_token_ms: Annotated[int, Duration("0ms", "60s")] = Field(
        alias="first_token", default=0, enforced_by="service/parts/wiring",
        description="The grid of the time to the first "
        "token; 0ms: none.")
    total_ms: Annotated[int, Duration("0ms", "600s")] = Field(
        alias="total", default=0, enforced_by="service/parts/wiring",
        description="The grid of the whole answer's time; 0ms: "
        "none.")
    jitter_ms: Annotated[int, Duration("0ms", "60s")] = Field(
        alias="jitter", default=0, enforced_by="service/parts/wiring",
        description="The longest random delay on top, from a "
        "secure source.")
    cadence_ms: Annotated[int, Duration("0ms", "60s")] = Field(
        alias="cadence", default=0, enforced_by="boot/running/interval", enforced_since=2,
        was=Was(1, description="Run passes at this fixed interval whether or not there is work, so that their number "
            "does not tell the number of tokens; 0ms: as fast as it goes."),
        description="Each model runs a pass of one size at each multiple of this interval, whether or not there is "
        "work, and delivers what it gave at the next multiple. So neither the number nor the times of passes tell of "
        "answers. The boot refuses an interval that the machine cannot hold. 0ms: as fast as it goes.")


class Pattern(Block):
    """A text pattern that is replaced. Patterns are applied in the order of their labels."""

    LABEL: ClassVar[str | None] = "name"
    ENFORCED_BY: ClassVar[Enforcers] = "service/admission/redaction"

    name: Annotated[str, NAME] = Field(description="The pattern's name, for counters; also its place in the order.")
    regex: Annotated[str, BoundedRegex()] = Field(
        description="A regular expression of the bounded subset: no `*`, `+` or open-ended "
        "`{n,}`, no look-around, no back-reference, so that no input makes it slow.")
    replacement: Annotated[str, FreeText(0, 256)] = Field(
        default="[redacted]", description="What stands instead, literally.")


class Redaction(Block):
    """The text that is removed from a request before the model sees it, and from an answer before
    it leaves."""

    fields: Annotated[tuple[str, ...], SetOf(FIELD)] = Field(
        default=(), enforced_by="service/answering/respond", description="Fields of the request body that are dropped "
        "on arrival, such as `user`.")
    patterns: tuple[Pattern, ...] = Field(alias="pattern", default=(), description="Text patterns to replace.")
    detectors: Annotated[tuple[str, ...], SetOf(Pick(DETECTORS))] = Field(
        default=(), enforced_by="service/admission/redaction", enforced_since=2, was=Was(
            1, SetOf(Pick(_FIRST_DETECTORS)), "Built-in detectors, with checksums where the kind has them."),
        description="Built-in detectors, which come before the patterns. `national-id` stands for all names that "
        "begin with a country. Each finds a form, checks its check digits, and asks for words before it where the "
        "form is common.")
    apply_to: Annotated[tuple[Literal["prompt", "answer"], ...], SetOf(Pick(("prompt", "answer")), 1)] = Field(
        default=("answer", "prompt"), enforced_by="service/parts/wiring", description="Where patterns and "
        "detectors apply.")


class Retention(Block):
    """How long what the appliance writes on the state disk is kept. Prompts and answers are not,
    but for what `session_persistence` keeps of them."""

    audit_ms: Annotated[int | None, Duration("1h", "3660d")] = Field(
        alias="audit", default=None, enforced_by="state/audit_sink", enforced_since=2,
        was=Was(1, description="Age at which audit records are deleted; absent: never."),
        description="Age at which the audit log's records of requests can be read no more: they are sealed under keys "
        "of periods, and each key is destroyed once its first record has this age. The chain verifies as before. "
        "Absent: never.")
    sessions_ms: Annotated[int | None, Duration("1m", "365d")] = Field(
        alias="sessions", default=None, enforced_by="state/sessions", enforced_since=2, was=Was(
            1, description="Age at which persisted sessions are deleted; absent: at once."),
        description="The greatest age of what `session_persistence` writes: its key is destroyed before, in the last "
        "eighth of that time. It counts while the appliance runs, and by the host's clock.")


class Privacy(Block):
    """The bounds of what an observer of the network and the operator of the machine may learn from
    answers."""

    timing_padding: TimingPadding | None = Field(default=None, description="Answer times on a grid; absent: none.")
    size_padding_bytes: Annotated[int | None, Size("16B", "1MiB")] = Field(
        alias="size_padding", default=None, enforced_by="service/parts/wiring",
        description="Answers and stream events are padded to multiples of this size; absent: not at all.")
    token_count_rounding: Annotated[int, Whole(1, 4096)] = Field(
        default=1, enforced_by="service/parts/wiring", description="Token counts in `usage`, metrics and the "
        "audit log are rounded up to multiples of this; 1: exact.")
    metrics_interval_ms: Annotated[int, Duration("0ms", "24h")] = Field(
        alias="metrics_interval", default=0, since=Since(2, 0), enforced_by="service/server", description="How often "
        "metrics, and the usage of others' keys, change. Whoever reads them in between sees the same numbers, so that "
        "they show no single request; 0ms: at each reading.")
    redaction: Redaction = Field(default_factory=Redaction, description="What is removed from requests and answers.")
    retention: Retention = Field(default_factory=Retention, description="How long state is kept.")
    memory_access: Annotated[Literal["oblivious", "open"], Pick(("oblivious", "open"))] = Field(
        default="open", since=Since(2, "open"), enforced_by="boot/stages", description="Whether the host may see which "
        "pages of memory a text needs. `oblivious`: texts of requests and answers, tokenizer, embeddings and "
        "samplers touch the same pages for all texts of a class of length. It needs `access_pattern = \"oblivious\"` "
        "of each model and a tokenizer that is covered, and refuses requests for what has no such form. Tools, their "
        "calls and Python's own objects still tell, and so does whether redaction may change a text.")
    auditor_key: Annotated[str | None, TaggedHex("x25519", 32)] = Field(
        default=None, enforced_by="service/answering/recording", enforced_since=2, description="X25519 public key to "
        "which audit detail is encrypted, so that the auditor alone reads it; and what a receipt's answer is computed "
        "from, where the policy keeps that from clients.")


class Limits(Block):
    """How much one request, one API key and all together may ask for. A request that exceeds a
    limit is refused."""

    prompt_tokens: Annotated[int, Whole(1, 16_777_216)] = Field(
        default=2048, enforced_by="service/answering/lengths", description="The longest prompt, in tokens, after the "
        "chat template.")
    generation_tokens: Annotated[int, Whole(1, 16_777_216)] = Field(
        default=512, enforced_by="service/answering/lengths", description="The longest answer, in tokens; also the "
        "default where a request says nothing.")
    oversized_max_tokens: Annotated[Literal["clamp", "refuse"], Pick(("clamp", "refuse"))] = Field(
        default="clamp", since=Since(2, "refuse"), enforced_by="service/answering/lengths", description="What to do "
        "with a request whose `max_tokens` exceeds `generation_tokens`: `clamp` gives it as many as are allowed and "
        "says so in a header, `refuse` refuses it.")
    choices: Annotated[int, Whole(1, 128)] = Field(
        default=32, since=Since(2, 1), enforced_by="service/answering/choices", description="How many answers one "
        "request may have: `n` or `best_of` for each of its prompts. A request whose prompts or answers may take more "
        "tokens than one of `prompt_tokens` and `generation_tokens` counts as several of `concurrent_requests`.")
    concurrent_requests: Annotated[int, Whole(1, 4096)] = Field(
        default=32,
        was=Was(1, description="Requests in progress or waiting, over all tenants; the next one is refused with 429. "
            "A place is kept for each tenant who holds none, up to a quarter of all."),
        enforced_by="service/parts/traffic",
        description="Requests in progress, over all tenants; further ones wait, up to "
        "`queued_requests`. A place is kept for each tenant who holds none, up to a quarter of all.")
    queued_requests: Annotated[int | None, Whole(0, 65_536)] = Field(
        default=256, since=Since(2, keep=0), enforced_by="service/parts/traffic",
        description="Requests that may wait for a "
        "place, over all tenants; the next one is refused with 429. 0: none waits. Under schema 1, "
        "`concurrent_requests` counts waiting requests too.")
    first_token_timeout_ms: Annotated[int, Duration("100ms", "1h")] = Field(
        alias="first_token_timeout", default=30_000,
        was=Was(1, description="A request that has no token by then is ended with an error."),
        enforced_by="service/answering/execution", description="A request that has no token by then is ended with an "
        "error. The time counts from the moment at which the model begins with it; a request waits up to ten minutes "
        "for that.")
    answer_timeout_ms: Annotated[int | None, Duration("1s", "24h")] = Field(
        alias="answer_timeout", default=None, since=Since(2), enforced_by="service/answering/execution",
        description="A whole answer's time, from the moment at which the model begins with it; an answer that is not "
        "complete by then is ended with an error. Absent: no limit.")
    request_size_bytes: Annotated[int, Size("1KiB", "64MiB")] = Field(
        alias="request_size", default=2**20, enforced_by="service/answering/respond", description="The longest request "
        "body. Reading one takes up to 48 times as much, which the boot reckons with.")
    requests_per_minute: Annotated[int | None, Whole(1, 1_000_000)] = Field(
        default=None, enforced_by="service/admission/limits", description="Requests of one API key in any 60 seconds; "
        "absent: no limit.")
    tokens_per_minute: Annotated[int | None, Whole(1, 2**40)] = Field(
        default=None, enforced_by="service/admission/limits", description="Tokens, prompt and answer, of one API key "
        "in any 60 seconds; absent: no limit.")
    tokens_per_day: Annotated[int | None, Whole(1, 2**50)] = Field(
        default=None, enforced_by="service/admission/limits", description="Tokens, prompt and answer, of one API key "
        "in any 24 hours; absent: no limit.")


class TimestampAuthority(Block):
    """An RFC 3161 authority that dates the audit log's checkpoints: the host owns the clock."""

    url: Annotated[str, HttpsUrl()] = Field(
        enforced_by="service/attesting/timestamps", enforced_since=2, description="Where the authority listens.")
    root_sha256: Annotated[str, Hash(256)] = Field(
        enforced_by="service/attesting/timestamps", enforced_since=2, description="SHA-256 of the DER "
        "bytes of the certificate that its chain must end in.")


class Witness(Block):
    """Someone elsewhere who signs the audit log's checkpoints, so that a rollback shows."""

    LABEL: ClassVar[str | None] = "name"

    name: Annotated[str, NAME] = Field(description="The witness's name.")
    url: Annotated[str, HttpsUrl()] = Field(
        enforced_by="service/attesting/witnesses", enforced_since=2, description="Where the witness listens.")
    public_key: Annotated[str, TaggedHex("ed25519", 32)] = Field(
        enforced_by="service/attesting/witnesses", enforced_since=2, description="The key that it signs with.")


class Audit(Block):
    """The audit log: one closed-schema JSON line per boot step, request and refusal, without any
    content."""

    sink: Annotated[Literal["stdout", "state"], Pick(("stdout", "state"))] = Field(
        default="stdout", enforced_by="boot/stages", description="`stdout`: lines for the operator's collector. "
        "`state`: the sealed state disk.")
    checkpoint_interval_ms: Annotated[int | None, Duration("1s", "24h")] = Field(
        alias="checkpoint_interval", default=None, enforced_by="service/server", enforced_since=2, description="How "
        "often the head of the hash chain is signed; absent: at shutdown only.")
    receipts: Annotated[bool, Switch()] = Field(
        default=False, enforced_by="service/parts/wiring", enforced_since=2, was=Was(
            1, description="Sign a receipt for each answer, which binds it to this policy and model."),
        description="Sign a receipt for each answer that asks for one, which binds it to this policy, model, image and "
        "log.")
    receipt_position: Annotated[Literal["now", "later"], Pick(("now", "later"))] = Field(
        default="now", since=Since(2, "now"), enforced_by="service/attesting/receipts", description="When the place of "
        "an answer's record is told. `now`: the receipt has it, under a checkpoint of that moment, which counts the "
        "records of other tenants. `later`: the receipt names the record without its place; a checkpoint that "
        "`checkpoint_interval` makes proves it afterwards.")
    outcomes: Annotated[Literal["named", "hidden"], Pick(("named", "hidden"))] = Field(
        default="named", since=Since(2, "named"), enforced_by="service/answering/recording", description="Whether the "
        "log and receipts name how a request for text ended. `hidden`: refused, answered, by a tool, to a schema, or "
        "cut at its length, its record has one form and size, and its receipt names no end. The holder of "
        "`privacy.auditor_key` can read how it ended. It needs a `cadence` with `first_token`, `total` and "
        "`size_padding`.")
    witnesses: tuple[Witness, ...] = Field(alias="witness", default=(), description="Who signs checkpoints.")
    timestamp_authority: TimestampAuthority | None = Field(default=None, description="Who dates checkpoints.")
