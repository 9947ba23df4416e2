"""The broker's configuration: a TOML file, of which README.md has one. Paths in it are relative to
the file."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance.attestation import keyfile
from appliance.attestation.case import measurements
from appliance.attestation.case.machine import MachineList
from appliance.attestation.judge import collateral_folder
from appliance.attestation.trust.roots import VENDORS, Roots
from appliance.errors import ApplianceError
from appliance.keys import document as keydocument
from appliance.keys.providers import FileKey, KeyProvider
from appliance.policy import Loaded, load
from appliance.policy.bulletins import lines
from appliance.secure.wipe import wipe
from appliance.signed import machines
from examples.broker.keepers.outward import Service
from examples.broker.keepers.pkcs11 import TokenWrapper
from examples.broker.keepers.trustee import RESOURCE, DataHub, Keeper, KeptKey, Trustee
from examples.broker.keepers.vault import VaultWrapper
from examples.broker.keepers.wrapping import FileWrapper, WrappedKey, Wrapper
from examples.broker.rules import WEAK, ConfigError, Rule, Rules

KINDS, KEEPERS = ("file", "pkcs11", "vault"), ("cdh", "kbs")
AGENT = "http://127.0.0.1:8006"  # where api-server-rest of the guest components listens
Place = TypeVar("Place")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_AUDITED = re.compile(r"[A-Za-z0-9._/-]{1,96}")  # a name that the audit log takes


def read(path: Path, roots: Roots = VENDORS) -> Rules:
    """The configuration in a file. Raises ConfigError, which names what is wrong in it."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from None
    folder = path.parent
    top = _Table(table, str(path), folder)
    sources = _Sources(_wrappers(top), _keepers(top))
    rules = tuple(_checked_rule(_Table(entry, f"{path}: release {number}", folder), sources)
                  for number, entry in enumerate(top.take("release", list, []), 1))
    audit = top.path("audit", optional=True)
    found = Rules(
        host=top.take("host", str, "127.0.0.1"), port=top.take("port", int, 8443), certificate=top.path("certificate"),
        private_key=top.path("private_key"), log=top.path("log", optional=True), rules=rules, roots=roots,
        shared_secret=_shared(top), audit=audit, audit_key=None if audit is None else _audit_key(top, rules))
    top.done()
    return found


def wrappers(path: Path) -> dict[str, Wrapper]:
    """The wrapping keys that a configuration names, whatever its rules are. Raises ConfigError."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from None
    return _wrappers(_Table(table, str(path), path.parent))


def _wrappers(top: _Table) -> dict[str, Wrapper]:
    given = top.take("wrapping", dict, {})
    return {name: _wrapper(top.within(entry, f"wrapping {name}")) for name, entry in given.items()}


def _wrapper(table: _Table) -> Wrapper:
    kind = table.take("kind", str)
    if kind not in KINDS:
        raise ConfigError(f"{table.where}: kind is {kind!r}; allowed: {', '.join(KINDS)}")
    found: Wrapper
    if kind == "file":
        found = FileWrapper(table.path("key_file"))
    elif kind == "pkcs11":
        found = TokenWrapper(table.path("module"), table.take("token", str), table.take("key", str),
                             table.path("pin_file"))
    else:
        found = _vault(table)
    table.done()
    return found


def _vault(table: _Table) -> Wrapper:
    service = _service(table)
    mount, name = table.take("mount", str, "transit"), table.take("key", str)
    if not all(_NAME.fullmatch(each) for each in (*mount.split("/"), name)):
        raise ConfigError(f"{table.where}: mount or key is not a name of letters, digits, dots and dashes")
    return VaultWrapper(service.url, mount, name, table.path("token_file"), service.ca)


def _service(table: _Table) -> Service:
    found = Service(table.take("url", str), table.path("ca", optional=True))
    if not found.allowed:
        raise ConfigError(f"{table.where}: url is {found.url!r}; allowed: https:// with `ca`, or http:// to this "
                          "machine", hint="name a file with the certificates that the server's must lead to, as `ca`")
    return found


def _keepers(top: _Table) -> dict[str, Keeper]:
    given = top.take("keeper", dict, {})
    return {name: _keeper(top.within(entry, f"keeper {name}")) for name, entry in given.items()}


def _keeper(table: _Table) -> Keeper:
    kind = table.take("kind", str)
    if kind not in KEEPERS:
        raise ConfigError(f"{table.where}: kind is {kind!r}; allowed: {', '.join(KEEPERS)}")
    agent = Service(table.take("agent", str, AGENT), None)
    if not agent.allowed:
        raise ConfigError(f"{table.where}: agent is {agent.url!r}; allowed: http:// to this machine",
                          hint=f"the agent of this machine listens at {AGENT}")
    found = DataHub(agent) if kind == "cdh" else Trustee(_service(table), agent)
    table.done()
    return found


def _shared(top: _Table) -> bytes | None:
    path = top.path("shared_secret", optional=True)
    if path is None:
        return None
    with FileKey(path, bare=True).key() as found:
        return bytes(found.data)


def _audit_key(top: _Table, rules: tuple[Rule, ...]) -> Ed25519PrivateKey:
    for rule in rules:
        if not _AUDITED.fullmatch(rule.resource):
            raise ConfigError(f"{top.where}: {rule.resource!r} is not a name of at most 96 letters, digits, dots, "
                              "dashes and slashes, so the audit log cannot have it")
    return keyfile.ed25519_private_key(top.path("audit_key"))


def _checked_rule(table: _Table, sources: _Sources) -> Rule:
    try:
        return _rule(table, sources)
    except (OSError, ValueError, ApplianceError) as error:
        raise ConfigError(str(error) if table.where in str(error) else f"{table.where}: {error}") from None


def _rule(table: _Table, sources: _Sources) -> Rule:
    policy = load(table.path("policy"))
    platforms = frozenset(table.take("platforms", list))
    for name in sorted(platforms):
        if name not in policy.policy.tee.platforms:
            raise ConfigError(f"{table.where}: platform {name!r} is none of the policy's")
        if name in WEAK and not table.take(WEAK[name], bool, False):
            raise ConfigError(f"{table.where}: platform {name} needs {WEAK[name]} = true",
                              hint="simulated evidence proves nothing; of TPM evidence the host is trusted, of a "
                              "NitroTPM's AWS")
    measured = table.path("measurements", optional=True)
    if platforms - {"simulated"} and measured is None:
        raise ConfigError(f"{table.where}: measurements is absent: which image may have the key?")
    self_test, makers = table.take("self_test_sha384", str, None), table.path("ek_roots", optional=True)
    rule = Rule(
        resource=(resource := table.take("resource", str)), version=(version := table.take("version", int)),
        source=_source(table, resource, version, sources),
        platforms=platforms, policy=policy,
        measured=None if measured is None else measurements.parse(measured.read_bytes()),
        collateral=table.path("collateral", optional=True),
        self_test_sha384=None if self_test is None else bytes.fromhex(self_test),
        attestation_keys=frozenset(map(_fingerprint, table.take("attestation_keys", list, []))),
        ek_roots=None if makers is None else collateral_folder.ek_roots(makers),
        waived=("revocation",) if table.take("without_revocation", bool, False) else (),
        machines=_machines(table, policy), until=_until(table))
    table.done()
    for product in lines.accepted_without_root(rule.policy.policy):
        print(f"warning: {rule.resource}: the policy accepts {product}, and {lines.ROOT_SEED_OUT[product]}",
              file=sys.stderr, flush=True)
    if not platforms or not 1 <= rule.version <= keydocument.LAST_VERSION:
        raise ConfigError(f"{table.where}: at least one platform, and a version from 1")
    wipe(rule.document())  # a key that cannot be read is found now, not when it is asked for
    return rule


def _source(table: _Table, resource: str, version: int, sources: _Sources) -> KeyProvider:
    keeper = table.take("kept_by", str, None)
    if keeper is not None:
        name = table.take("kept_as", str, resource)
        if RESOURCE.fullmatch(name) is None:
            raise ConfigError(f"{table.where}: kept_as is {name!r}; allowed: REPOSITORY/TYPE/TAG",
                              hint="name the resource as the KBS has it")
        return KeptKey(_named(table, "keeper", "kept_by", keeper, sources.keepers), name, version)
    path, wrapper = table.path("key_file"), table.take("wrapped_by", str, None)
    if wrapper is None:
        return FileKey(path, version, bare=True)
    return WrappedKey(path, resource, version, _named(table, "wrapping", "wrapped_by", wrapper, sources.wrappers))


def _named(table: _Table, kind: str, key: str, name: str, known: Mapping[str, Place]) -> Place:
    if name not in known:
        raise ConfigError(f"{table.where}: {key} is {name!r}; there are: {', '.join(sorted(known)) or 'none'}",
                          hint=f"add a table [{kind}.{name}]")
    return known[name]


def _until(table: _Table) -> datetime | None:
    found: datetime | None = table.take("until", datetime, None)
    if found is not None and found.tzinfo is None:
        raise ConfigError(f"{table.where}: until has no offset", hint="write UTC: 2026-12-24T18:00:00Z")
    return found


def _machines(table: _Table, policy: Loaded) -> MachineList | None:
    """The list of machines, as a verifier finds it."""
    found = machines.machines_of(policy.policy, policy.path.parent, table.path("machines", optional=True))
    if found is None and policy.policy.tee.evidence.machines is not None:
        raise ConfigError(f"{table.where}: machines is absent: the policy demands listed ones",
                          hint="name the signed list, or put it beside the policy")
    return found


def _fingerprint(text: object) -> bytes:
    if not isinstance(text, str) or not text.startswith("sha256:") or len(digest := bytes.fromhex(text[7:])) != 32:
        raise ValueError("attestation_keys: each is sha256: and 64 hex digits")
    return digest


@dataclass(frozen=True)
class _Sources:
    """The places of keys that tables of the file name."""

    wrappers: Mapping[str, Wrapper]
    keepers: Mapping[str, Keeper]


class _Table:
    """A TOML table from which each key is taken once; a key that is left over is an error."""

    def __init__(self, table: Mapping[str, Any], where: str, folder: Path) -> None:
        self._left, self.where, self._folder = dict(table), where, folder

    def take(self, key: str, kind: type, *default: Any) -> Any:
        if key not in self._left and default:
            return default[0]
        value = self._left.pop(key, None)
        if not isinstance(value, kind):
            raise ConfigError(f"{self.where}: {key} is absent or no {kind.__name__}")
        return value

    def within(self, entry: Any, name: str) -> _Table:
        if not isinstance(entry, dict):
            raise ConfigError(f"{self.where}: {name} is not a table")
        return _Table(entry, f"{self.where}: {name}", self._folder)

    def path(self, key: str, *, optional: bool = False) -> Any:
        value = self.take(key, str, *([None] if optional else []))
        return None if value is None else self._folder / value

    def done(self) -> None:
        if self._left:
            raise ConfigError(f"{self.where}: {', '.join(sorted(self._left))}: not known here")
