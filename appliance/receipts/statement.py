"""The statement of a receipt: who answered what, by which model, policy and image, and its record.

Nothing in it is content. Digests of request, answer, tokens and settings are salted; the salts are
in the receipt's opening, which is the client's alone. docs/formats/receipt.md specifies both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from appliance.codec.canonical import canonical

PLACED, UNPLACED, ENDLESS = "appliance/receipt/v1", "appliance/receipt/v2", "appliance/receipt/v3"
ORIGIN = "appliance/audit/"  # before a log's identity, the name of its checkpoints


Hex16 = Annotated[str, StringConstraints(strict=True, pattern=r"^[0-9a-f]{32}$")]
Hex32 = Annotated[str, StringConstraints(strict=True, pattern=r"^[0-9a-f]{64}$")]
Hex48 = Annotated[str, StringConstraints(strict=True, pattern=r"^[0-9a-f]{96}$")]
Registers = Annotated[str, StringConstraints(strict=True, pattern=r"^(?:[0-9a-f]{96}){1,5}$")]
Name = Annotated[str, StringConstraints(strict=True, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Word = Annotated[str, StringConstraints(strict=True, pattern=r"^[a-z0-9_/.{}-]{1,64}$")]
Count = Annotated[int, Field(strict=True, ge=0, lt=1 << 53)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Asked(_Section):
    """The request: its id, and the salted digest of its body as it came."""

    id: Annotated[str, StringConstraints(strict=True, pattern=r"^req-[0-9a-f]{32}$")]
    endpoint: Word
    digest: Hex32


class Answered(_Section):
    """The answer: the salted digest of its bytes before the receipt, and how it ended. `finish` is
    None in version 3."""

    digest: Hex32
    streamed: Annotated[bool, Field(strict=True)]
    finish: Word | None = None


class Tokens(_Section):
    """The salted digest of prompt and answer as tokens, and their counts as the policy rounds
    them. `cached` is None in version 3."""

    digest: Hex32
    prompt: Count
    completion: Count
    cached: Count | None = None
    rounding: Count


class AnsweringModel(_Section):
    """The model by the policy's pins, with the key that signed it, and the name that the policy
    asks of that key's certificate."""

    name: Name
    sha256: Hex32
    sealed_header_sha256: Hex32 | None
    publisher: Annotated[str, StringConstraints(strict=True, pattern=r"^[a-z0-9]{4,8}:[0-9a-f]{64,134}$")] | None
    publisher_identity: Annotated[str, StringConstraints(strict=True, min_length=1, max_length=256)] | None


class Image(_Section):
    """The image that ran. `measurement` is the launch's: 48 bytes of SEV-SNP, MRTD and four RTMRs
    of TDX, null elsewhere."""

    platform: Word
    measurement: Registers | None
    version: Annotated[str, StringConstraints(strict=True, pattern=r"^[0-9A-Za-z.+-]{1,64}$")]
    code_sha384: Hex48 | None
    kernels_sha384: Hex48 | None
    self_test_sha384: Hex48


ROPE_FACTOR, ROPE_ORIGINAL = "rope_factor", "rope_original_context"
"""Settings of a model whose policy gives it positions beyond those of its file."""
LEAKS = "access_pattern_leaks"
"""1 where the policy lets the operator of the disk see what a text is about; else absent."""
OBLIVIOUS = "memory_access_oblivious"
"""1 where texts and tokens were read by whole sweeps; else absent."""


class Choosing(_Section):
    """How tokens were chosen: the chain, its parameters and the seed. `digest` is salted, over
    these and what came from the request's text."""

    samplers: Annotated[tuple[Word, ...], Field(max_length=32)]
    settings: dict[Word, int | float]
    seed: Annotated[str, StringConstraints(strict=True, pattern=r"^(?:0|[1-9][0-9]{0,19})$")]
    kv_cache: Word
    digest: Hex32


class RecordPlace(_Section):
    """The record of this answer in the audit log. `seq`: its number; None in version 2."""

    log: Hex16
    epoch: Count
    boot: Hex16
    seq: Count | None = None
    leaf: Hex32


class Receipt(_Section):
    """A receipt's statement. Version 1 has the record's place: its number, and a path to a
    checkpoint. Version 2 has none of these: they count the records of others. Version 3 does not
    tell either how the answer ended, and what came from a cache."""

    type: Literal["appliance/receipt/v1", "appliance/receipt/v2", "appliance/receipt/v3"] = "appliance/receipt/v1"
    request: Asked
    answer: Answered
    tokens: Tokens
    model: AnsweringModel
    policy_sha384: Hex48
    image: Image
    generation: Count
    sampling: Choosing
    record: RecordPlace
    time: Annotated[str, StringConstraints(strict=True, pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]
    time_source: Literal["host"] = "host"
    checkpoint: Annotated[str, StringConstraints(strict=True, max_length=4096)] | None = None
    path: Annotated[tuple[Hex32, ...], Field(max_length=64)] | None = None

    @model_validator(mode="after")
    def _whole(self) -> Receipt:
        """Require the place in version 1 and none of it in the others, and the end in all but
        version 3."""
        for members, there in (((self.record.seq, self.checkpoint, self.path), self.type == PLACED),
                               ((self.answer.finish, self.tokens.cached), self.type != ENDLESS)):
            if [each is not None for each in members] != [there] * len(members):
                raise ValueError("a place or an end in part, or in another version")
        return self

    @property
    def origin(self) -> str:
        """The name of its log's checkpoints."""
        return ORIGIN + self.record.log if self.checkpoint is None else self.checkpoint.partition("\n")[0]

    def encode(self) -> bytes:
        """Its one form (RFC 8785)."""
        absent: dict[str, Any] = {} if self.type == PLACED else {"checkpoint": True, "path": True, "record": {"seq"}}
        if self.type == ENDLESS:
            absent |= {"answer": {"finish"}, "tokens": {"cached"}}
        return canonical(self.model_dump(mode="json", exclude=absent or None))


def event_data(receipt: Mapping[str, Any], request_id: str) -> dict[str, Any]:
    """The data of a stream's event that has a receipt. Clients of OpenAI's API read it as a chunk
    without choices; those of the others pass it over."""
    return {"id": request_id, "object": "appliance.receipt", "type": "appliance.receipt", "choices": [],
            "receipt": receipt}


def settings_digest(salt: bytes, settings: Any) -> bytes:
    """The salted digest of all that the choice of tokens depends on, as the opening has it."""
    return hashlib.sha256(salt + canonical(settings)).digest()
