"""The choices that a first deployment is made of, and what each of them may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from appliance import platforms
from appliance.errors import PolicyError
from appliance.imaging.qemu.machine import Reach
from appliance.policy.schema.identifiers import NAME
from appliance.policy.schema.kinds import Mismatch

CHATTING = ("user", "admin")
ROLES = (*CHATTING, "auditor", "metrics")
PRIVACY: Mapping[str, str] = MappingProxyType({
    "open": "exact times, sizes and token counts; nothing is redacted",
    "guarded": "times and token counts on a coarse grid; secrets and card numbers are redacted",
    "strict": "also sizes on a grid; all detectors of personal data redact prompts and answers",
})
KEYS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    platforms.SIMULATED.name: ("file", "none"), platforms.TPM.name: ("tpm", "broker", "none"),
    platforms.TDX.name: ("broker", "none"), platforms.SNP.name: ("broker", "none"),
})
"""The keepers of the model's key on each platform, the default first; none: a plain model."""
MODEL = "chat"  # the model's name in requests: a later model can take its place
BROKER = f"{Reach.ADDRESS}:9443"  # where a guest of QEMU finds a broker of this machine


@dataclass(frozen=True, slots=True)
class TenantChoice:
    """A tenant, and what its API key may do."""

    name: str
    role: str = "user"

    @property
    def chats(self) -> bool:
        """Whether its key may ask the model."""
        return self.role in CHATTING


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """A first deployment. Raises PolicyError for a combination that no policy allows."""

    name: str
    platform: str
    model: Path
    key: str
    privacy: str = "guarded"
    tenants: tuple[TenantChoice, ...] = (TenantChoice("first"), TenantChoice("operations", "admin"))
    broker: str = BROKER  # HOST:PORT
    port: int = 8080

    def __post_init__(self) -> None:
        """Check that the choices go together."""
        if self.key not in KEYS[self.platform]:
            raise PolicyError(f"on the platform {self.platform} the model's key cannot be kept by {self.key!r}",
                              code="init-choice", hint=f"--key {' or '.join(KEYS[self.platform])}")
        names = [each.name for each in self.tenants]
        for name in (self.name, *names):
            try:
                NAME.parse(name)
            except Mismatch:
                raise PolicyError(f"{name!r} is not {NAME.allowed()}", code="init-choice",
                                  hint="--name NAME, --tenant NAME=ROLE") from None
        if len(set(names)) < len(names):
            raise PolicyError("two tenants have the same name", code="init-choice", hint="--tenant NAME=ROLE")
        if not any(each.chats for each in self.tenants):
            raise PolicyError("no tenant may chat", code="init-choice", hint="--tenant NAME, --tenant NAME=admin")

    @property
    def simulated(self) -> bool:
        """Whether the platform is the simulated one."""
        return self.platform == platforms.SIMULATED.name

    @property
    def sealed(self) -> bool:
        """Whether the model is encrypted."""
        return self.key != "none"

    @property
    def chatting(self) -> TenantChoice:
        """The first tenant that may chat."""
        return next(each for each in self.tenants if each.chats)


def tenant(text: str) -> TenantChoice:
    """Read `NAME` or `NAME=ROLE`. Raises PolicyError."""
    name, _, role = text.partition("=")
    if (role or "user") not in ROLES:
        raise PolicyError(f"{role!r} is not a role", code="init-choice",
                          hint=f"--tenant {name}=ROLE, with {', '.join(ROLES)}")
    return TenantChoice(name, role or "user")
