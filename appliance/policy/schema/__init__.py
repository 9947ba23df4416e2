"""The policy language in all its versions: one class per block."""

from __future__ import annotations

from appliance.policy.schema.base import Block, Field, FieldShape, fields
from appliance.policy.schema.keys import OPERATOR_PROVIDERS, Broker, KeySource, Vault
from appliance.policy.schema.model import Alias, Model, Publisher
from appliance.policy.schema.platform import Appliance, Approver, Quorum, Requirements, State, Tee
from appliance.policy.schema.privacy import (
    DETECTORS,
    Audit,
    Limits,
    Pattern,
    Privacy,
    Redaction,
    Retention,
    TimestampAuthority,
    TimingPadding,
    Witness,
)
from appliance.policy.schema.sampling import SamplingBounds
from appliance.policy.schema.service import Listener, Service, Tenant, Tenants, Tls
from appliance.policy.schema.versions import Since


class Policy(Block):
    """A deployment policy: everything that decides how the appliance behaves. Its digest is in the
    hardware evidence, so that a client can check what the operator promised."""

    appliance: Appliance = Field(description="The deployment's name and the version of the language.")
    tee: Tee = Field(description="Platforms, memory, and what evidence must show.")
    state: State | None = Field(default=None, description="The writable disk; absent: nothing is ever written.")
    approvals: Quorum | None = Field(default=None, description="Who must have signed; absent: nobody.")
    models: tuple[Model, ...] = Field(alias="model", default=(), description="The models; at least one.")
    aliases: tuple[Alias, ...] = Field(
        alias="alias", since=Since(2, ()), default=(), description="Other names of models in requests.")
    privacy: Privacy = Field(default_factory=Privacy, description="What answers may give away.")
    limits: Limits = Field(default_factory=Limits, description="How much may be asked.")
    tenants: Tenants = Field(description="Who may ask.")
    service: Service = Field(description="Where the service listens.")
    audit: Audit = Field(default_factory=Audit, description="The audit log.")

    @property
    def simulated(self) -> bool:
        """Whether this policy is for the simulated platform, which protects nothing."""
        return self.tee.platforms == ("simulated",)

    @property
    def at_boot(self) -> tuple[Model, ...]:
        """The models that a boot loads."""
        return tuple(model for model in self.models if model.load != "demand")


__all__ = [
    "DETECTORS",
    "OPERATOR_PROVIDERS",
    "Alias",
    "Appliance",
    "Approver",
    "Audit",
    "Block",
    "Broker",
    "FieldShape",
    "KeySource",
    "Limits",
    "Listener",
    "Model",
    "Pattern",
    "Policy",
    "Privacy",
    "Publisher",
    "Quorum",
    "Redaction",
    "Requirements",
    "Retention",
    "SamplingBounds",
    "Service",
    "State",
    "Tee",
    "Tenant",
    "Tenants",
    "TimestampAuthority",
    "TimingPadding",
    "Tls",
    "Vault",
    "Witness",
    "base",
    "fields",
    "frozen",
    "identifiers",
    "keys",
    "kinds",
    "model",
    "patterns",
    "platform",
    "sampling",
    "service",
    "versions",
]
