"""The blocks on who may ask and where: `tenants`, `service`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from appliance.policy.schema.base import LATER, Block, Enforcers, Field
from appliance.policy.schema.identifiers import DNS_NAME, NAME, Hash, IpAddress, Path, TaggedHex
from appliance.policy.schema.kinds import Duration, Pick, SetOf, Switch, Whole
from appliance.policy.schema.versions import Since, Was

ListenerKind = Literal["tcp", "tls", "ra-tls", "unix", "vsock"]
Serves = Literal["all", "api", "metrics"]


class Tenant(Block):
    """A tenant that stands in the policy itself; for development (`platforms = ["simulated"]`)."""

    LABEL: ClassVar[str | None] = "name"
    ENFORCED_BY: ClassVar[Enforcers] = "service/admission/tenants"

    name: Annotated[str, NAME] = Field(description="The tenant's name in the audit log.")
    role: Annotated[Literal["user", "auditor", "admin", "metrics"], Pick(("user", "auditor", "admin", "metrics"))] = (
        Field(default="user", was=Was(1, Pick(("user", "auditor", "admin")),
                                      "`user` asks models. `auditor` reads metrics. `admin` may do both."),
              description="`user` asks models. `auditor` reads metrics and the audit log. `metrics` reads `/metrics` "
              "and nothing else. `admin` may do all of it, and changes models and tenants."))
    models: Annotated[tuple[str, ...], SetOf(NAME)] = Field(
        default=(), description="The models that the tenant may ask, each by name; empty: none.")
    api_key_sha256: Annotated[tuple[str, ...], SetOf(Hash(256, "key"), 1, 64)] = Field(
        description="SHA-256 of each API key that the tenant may use (`appliance key new` prints both).")
    weight: Annotated[int, Whole(1, 100)] = Field(
        since=Since(2, 1), default=1, description="The tenant's part beside others: turns in a row, and rows of "
        "prompts in a pass. A tenant of weight 3 gets three times as much as one of weight 1 while both want more.")
    concurrent_requests: Annotated[int | None, Whole(1, 4096)] = Field(
        since=Since(2), default=None, description="Most requests of the tenant in progress; further ones wait. Absent: "
        "as many as others leave.")
    context_length: Annotated[int | None, Whole(2, 16_777_216)] = Field(
        since=Since(2), default=None, enforced_by="service/answering/admit", description="Most tokens of a request, "
        "prompt and answer together; absent: as the model and `limits` have it.")
    requests_per_minute: Annotated[int | None, Whole(1, 1_000_000)] = Field(
        since=Since(2), default=None, enforced_by="service/admission/limits", description="Requests of the tenant in "
        "any 60 seconds, by all its keys; absent: no limit. A key's own limits in `limits` hold as well.")
    tokens_per_minute: Annotated[int | None, Whole(1, 2**40)] = Field(
        since=Since(2), default=None, enforced_by="service/admission/limits", description="Tokens of the tenant in any "
        "60 seconds, by all its keys and at the prices below; absent: no limit.")
    tokens_per_day: Annotated[int | None, Whole(1, 2**50)] = Field(
        since=Since(2), default=None, enforced_by="service/admission/limits", description="Tokens of the tenant in any "
        "24 hours, by all its keys and at the prices below; absent: no limit.")
    prompt_price: Annotated[int, Whole(1, 1000)] = Field(
        since=Since(2, 1), default=1, enforced_by="service/admission/limits", description="The tokens that one of a "
        "prompt counts as in the tenant's own limits.")
    answer_price: Annotated[int, Whole(1, 1000)] = Field(
        since=Since(2, 1), default=1, enforced_by="service/admission/limits", description="The tokens that one of an "
        "answer counts as in the tenant's own limits.")


class Tenants(Block):
    """The tenants who may use the appliance. They stand in a signed, versioned list whose authority
    is pinned here, so that adding an API key changes nothing that clients verify. For development,
    tenants may stand in the policy itself."""

    authority: Annotated[str | None, TaggedHex("ed25519", 32)] = Field(
        default=None, enforced_by="signed/tenants", description="The public key that signs the tenant list.")
    list_file: Annotated[str | None, Path()] = Field(
        alias="list", default=None, enforced_by="signed/tenants", description="The file of the signed list, beside the "
        "policy.")
    min_version: Annotated[int, Whole(0, 2**53 - 1)] = Field(
        default=0, enforced_by="signed/tenants", description="The lowest version of the list that is accepted, against "
        "rollback.")
    tenants: tuple[Tenant, ...] = Field(
        alias="tenant", default=(), description="Tenants in the policy itself; not beside `authority`.")
    commitment: Annotated[str | None, TaggedHex("sha384", 48, "commitment")] = Field(
        default=None, enforced_by=LATER, description="Stands for left-out `tenant` blocks in a copy that `appliance "
        "digest --without-tenants` made: the copy has the original's digest, and verifies, but never boots.")


class Listener(Block):
    """A place where the service accepts connections. On SEV-SNP and TDX, RA-TLS is the only way in.
    """

    LABEL: ClassVar[str | None] = "name"

    name: Annotated[str, NAME] = Field(description="The listener's name in reports.")
    kind: Annotated[ListenerKind, Pick(("tcp", "tls", "ra-tls", "unix", "vsock"))] = Field(
        enforced_by="service/server", description="`ra-tls`: the certificate's key is made inside the TEE and bound in "
        "its evidence. `tcp` (plain, loopback only), `unix`, `vsock` (plain) and `tls` (with a key from the operator) "
        "are for simulated policies.")
    transport: Annotated[Literal["tcp", "vsock"] | None, Pick(("tcp", "vsock"))] = Field(
        default=None, enforced_by="service/server", description="What carries `ra-tls`; absent: TCP.")
    address: Annotated[str | None, IpAddress()] = Field(
        default=None, enforced_by="service/server", description="The address to listen on; absent: 127.0.0.1. Not with "
        "Unix sockets or vsock.")
    port: Annotated[int | None, Whole(1, 2**32 - 2)] = Field(
        default=None, enforced_by="service/server", description="The TCP port (up to 65535) or vsock port. Not with "
        "Unix sockets.")
    path: Annotated[str | None, Path(absolute=True)] = Field(
        default=None, enforced_by="service/server", description="The socket's path; with `unix` only.")
    certificate: Annotated[str | None, Path(absolute=True)] = Field(
        default=None, enforced_by="http/tls", description="The PEM certificate chain; with `tls` only.")
    private_key: Annotated[str | None, Path(absolute=True)] = Field(
        default=None, enforced_by="http/tls", description="The PEM file of its key, not the key; with `tls` "
        "only.")
    names: Annotated[tuple[str, ...], SetOf(DNS_NAME)] = Field(
        default=(), enforced_by="http/tls", description="DNS names in the certificate; with `ra-tls` only.")
    rotation_ms: Annotated[int | None, Duration("10m", "90d")] = Field(
        alias="rotation", default=None, enforced_by="http/tls", description="How long a certificate lives "
        "before the next one, newly attested, replaces it; absent: 24h. With `ra-tls` only.")
    serves: Annotated[Serves, Pick(("all", "api", "metrics"))] = Field(
        since=Since(2, "all"), default="all", enforced_by="service/server", description="`metrics`: "
        "`/metrics`, `/health` and evidence, and nothing else. `api`: everything but `/metrics`. `all`: both. A "
        "listener for metrics stays where the policy has it, whatever the operator may set at boot.")

    @property
    def host(self) -> str:
        """The IP address to listen on, with the default filled in."""
        return self.address or "127.0.0.1"


class Tls(Block):
    """The service's demands on TLS connections."""

    key_exchange: Annotated[Literal["any", "post-quantum"], Pick(("any", "post-quantum"))] = Field(
        since=Since(2, "any"), default="any", enforced_by="http/tls", description="`post-quantum`: a "
        "connection whose key exchange is not hybrid with ML-KEM (FIPS 203) ends after its handshake, before a byte of "
        "a request. Either way such an exchange is preferred.")


class Service(Block):
    """Where the service listens, and what the operator may vary at boot."""

    listeners: tuple[Listener, ...] = Field(alias="listen", default=(), description="At least one listener.")
    operator_may_set: Annotated[tuple[str, ...], SetOf(Pick(("listen_address", "listen_port", "log_sink")))] = Field(
        default=(), enforced_by="boot/checks", description="What the operator may choose at boot. Nothing else, by no "
        "flag or variable.")
    session_binding: Annotated[Literal["required", "key"], Pick(("required", "key"))] = Field(
        since=Since(2, "key"), default="required", enforced_by="service/routes", description="The thing that evidence "
        "for a nonce is bound to. `required`: to the TLS session that it is asked on, so that it cannot be relayed. "
        "`key`: to the TLS key alone, for clients whose TLS has no exporter; whoever once got that key can relay it.")
    strict: Annotated[bool, Switch()] = Field(
        since=Since(2, False), default=False, enforced_by="service/answering/respond", description="Whether requests "
        "are refused for a name that this service does not know, and for a wish that has no effect here. Otherwise "
        "such parts are ignored, and the answer names them in the header `appliance-ignored`.")
    tls: Tls | None = Field(since=Since(2), default=None, description="The demands on TLS connections; "
        "absent: nothing beyond version 1.3.")
    drain_timeout_ms: Annotated[int, Duration("0s", "10m")] = Field(
        alias="drain_timeout", default=30_000, was=Was(
            1, description="How long requests in progress may take to end after SIGTERM, before they are cancelled."),
        enforced_by="service/server", description="How long requests in "
        "progress may take to end after SIGTERM, before they are cancelled; and those of a model that is unloaded.")
