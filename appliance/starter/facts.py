"""Facts about the model and the keys of a first deployment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """A model's lines in the policy, as hashing or sealing found them. Digests in hex."""

    file: str
    sha256: str
    header_sha256: str | None = None  # of a sealed file
    shards: tuple[str, ...] = ()
    context: int | None = None  # tokens, by the file
    template: bool = True  # whether the file has a chat template
    sampling: str = ""  # the block that the file advises


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFacts:
    """The public halves of the keys that were made for the policy."""

    authority: str  # of the tenant list: ed25519:HEX
    hashes: dict[str, str]  # tenant -> SHA-256 of its API key
    root_sha256: str = ""  # of the broker's certificate
    model_key: str = ""  # the path of the key file, for development
