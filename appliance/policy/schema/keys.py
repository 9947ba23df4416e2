"""Key providers: where the key of a sealed model or of the state disk comes from."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from appliance.policy.schema.base import LATER, Block, Enforcers, Field
from appliance.policy.schema.identifiers import NAME, RESOURCE, VARIABLE, Hash, HttpsUrl, Path
from appliance.policy.schema.kinds import Pick, SetOf, Whole
from appliance.policy.schema.versions import Since, Until, Was

Provider = Literal["broker", "vault", "tpm", "file", "environment", "systemd-credential", "ephemeral"]
OPERATOR_PROVIDERS = ("file", "environment", "systemd-credential")  # the operator could read these keys
NO_VAULT = 'use provider = "broker" and a broker block: a broker asks for evidence, Vault only for a token'
_LOCAL_PROVIDERS = (
    "`tpm`: sealed to PCRs. `ephemeral`: made at boot and lost at shutdown (state only). `file`, `environment`, "
    "`systemd-credential`: from the operator, for development.")


class Broker(Block):
    """A key broker that releases a key after attestation (RCAR handshake, as Confidential
    Containers' KBS)."""

    ENFORCED_BY: ClassVar[Enforcers] = "keys/release/release"

    url: Annotated[str, HttpsUrl()] = Field(description="Where the broker listens.")
    root_sha256: Annotated[str, Hash(256)] = Field(
        description="SHA-256 of the DER bytes of the one certificate that the broker's chain must end in. The "
        "machine's own trust store is never asked.")
    resource: Annotated[str, RESOURCE] = Field(description="The broker's name for the key.")
    session_binding: Annotated[Literal["required", "key"], Pick(("required", "key"))] = Field(
        since=Since(2, "key"), default="required", description="The thing that evidence for the broker is bound to. "
        "`required`: to the TLS connection to the broker, so that nobody in between can pass it on. `key`: to the "
        "release key alone, for a broker behind a proxy that ends TLS, or one that knows `key-release/v1` alone.")


class Vault(Block):
    """A Vault transit engine that unwraps the key."""

    ENFORCED_BY: ClassVar[Enforcers] = LATER

    url: Annotated[str, HttpsUrl()] = Field(description="Where Vault listens.")
    root_sha256: Annotated[str, Hash(256)] = Field(
        description="SHA-256 of the DER bytes of the one certificate that Vault's chain must end in.")
    mount: Annotated[str, NAME] = Field(default="transit", description="The mount point of the transit engine.")
    key_name: Annotated[str, NAME] = Field(description="The transit key that wraps ours.")


class KeySource(Block):
    """Where a key comes from. Providers by file, environment and systemd credential hand the key to
    the operator, so they need `platforms = ["simulated"]`."""

    provider: Annotated[
        Provider, Pick(("broker", "tpm", "file", "environment", "systemd-credential", "ephemeral"))
    ] = Field(
        was=Was(1, Pick(("broker", "vault", "tpm", "file", "environment", "systemd-credential", "ephemeral")),
            "`broker` and `vault`: released over the network after attestation. " + _LOCAL_PROVIDERS, NO_VAULT),
        enforced_by="keys/policy_keys",
        only={
            "model.key.provider": ("file", "environment", "systemd-credential", "broker", "tpm"),
            "state.key.provider": ("file", "environment", "systemd-credential", "broker", "tpm", "ephemeral")},
        description="`broker`: released over the network after attestation. " + _LOCAL_PROVIDERS)
    version: Annotated[int | None, Whole(1, 2**31)] = Field(
        default=None, enforced_by=("keys/policy_keys", "keys/release/release"),
        description="The one version of the key that is accepted; absent: the provider's newest.")
    path: Annotated[str | None, Path(absolute=True)] = Field(
        default=None, enforced_by="keys/policy_keys", description="The key file; with `file` only.")
    variable: Annotated[str | None, VARIABLE] = Field(
        default=None, enforced_by="keys/policy_keys", description="The environment variable; with `environment` "
        "only.")
    credential: Annotated[str | None, NAME] = Field(
        default=None, enforced_by="keys/policy_keys", description="The credential's name; with "
        "`systemd-credential` only.")
    pcrs: Annotated[tuple[int, ...] | None, SetOf(Whole(0, 23), 1, 24)] = Field(
        default=None, enforced_by="keys/release/release", description="The PCRs that the key is sealed to; with "
        "`tpm` only.")
    broker: Broker | None = Field(default=None, description="With `broker` only.")
    vault: Vault | None = Field(default=None, until=Until(1, NO_VAULT), description="With `vault` only.")
