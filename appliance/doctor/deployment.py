"""A policy on this machine: what it asks for and does not find."""

from __future__ import annotations

import socket
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from appliance.doctor import hardware
from appliance.doctor.line import BOOT, BUILD, SERVE, Line
from appliance.errors import ApplianceError
from appliance.platforms import SIMULATED, TPM
from appliance.policy import Policy, policy_digest
from appliance.policy.explaining.checking import CheckResult, check_file
from appliance.policy.schema import KeySource
from appliance.signed import approvals, tenants

_AREA = "policy"


def lines(path: Path, folders: Sequence[Path], root: Path = Path("/")) -> Iterator[Line]:
    """Yield what the policy needs, there or not. Raises PolicyError if it cannot be read."""
    checked = check_file(path)
    yield _valid(checked, path)
    policy = checked.policy
    if policy is None:
        return
    yield _platform(policy, root)
    places = [path.parent, *folders]
    yield from _models(policy, places, path)
    yield from _keys(policy, places, path)
    yield from _tenants(policy, places)
    yield from _approved(checked, policy, path)
    yield from _ports(policy)


def needed_tasks(policy: Policy | None, root: Path = Path("/")) -> tuple[str, ...]:
    """Return the tasks that a policy needs on this machine."""
    if policy is None:
        return ()
    here = policy.simulated or set(policy.tee.platforms) & {*hardware.platforms_here(root)}
    return (SERVE,) if here else (BUILD, BOOT)


def _valid(checked: CheckResult, path: Path) -> Line:
    fix = f"appliance check {path}"
    if not checked.valid:
        count = sum(each.severity == "error" for each in checked.diagnostics)
        return Line(_AREA, "check", "no", f"not valid: {count} errors", fix)
    if checked.obstacles:
        return Line(_AREA, "check", "no", f"this version does not boot it, because of {', '.join(checked.obstacles)}",
                    fix)
    return Line(_AREA, "check", "yes", "valid, and this version boots it")


def _platform(policy: Policy, root: Path) -> Line:
    names = ", ".join(policy.tee.platforms)
    if policy.simulated:
        return Line(_AREA, "platform", "yes", f"{SIMULATED.name}: any machine; it protects nothing")
    here = [name for name in hardware.platforms_here(root) if name in policy.tee.platforms]
    if here:
        return Line(_AREA, "platform", "yes", f"{here[0]}: this machine is one")
    if TPM.name in policy.tee.platforms:
        return Line(_AREA, "platform", "note", f"{names}: this machine is not one; a guest with a software TPM is",
                    "appliance image build POLICY -o DIR --here, then appliance image boot DIR --tpm-state DIR")
    return Line(_AREA, "platform", "note", f"{names}: this machine is not one",
                f"boot its image on one: docs/guides/{policy.tee.platforms[0]}.md")


def _models(policy: Policy, places: list[Path], path: Path) -> Iterator[Line]:
    try:
        from appliance.boot import checks
        from appliance.boot.planning import machine
        from appliance.models.catalogue import Catalogue
    except ImportError:
        yield Line(_AREA, "models", "note", "not looked at: this is a client's installation", "")
        return
    catalogue = Catalogue(checks.find_models(policy, places))
    absent = [*checks.model_files(catalogue.paths)]
    for each in absent:
        yield Line(_AREA, "model", "no", each, f"put it there, or name its folder: appliance doctor {path} "
                   "--models DIR")
    if absent:
        return
    unfit = [*checks.fit(policy, catalogue)]
    for each in unfit:
        yield Line(_AREA, "model", "no", each, f"appliance check {path}")
    if unfit:
        return
    yield Line(_AREA, "models", "yes", ", ".join(f"{each.name} ({each.file})" for each in policy.models))
    short = [*checks.memory(policy, catalogue, machine.total_memory(), machine.available_memory())]
    for each in short:
        yield Line(_AREA, "memory", "no", each, f"appliance plan-memory {path}")
    if not short:
        yield Line(_AREA, "memory", "yes", "its models fit into what is free here")


def _keys(policy: Policy, places: list[Path], path: Path) -> Iterator[Line]:
    for model in policy.models:
        if model.key is None:
            continue
        name = f"key of {model.name}"
        if model.key.provider == "file" and model.key.path is not None:
            yield _key_file(name, Path(model.key.path))
        elif model.key.provider == TPM.name:
            yield _tpm_key(name, model.file, model.key, places, path)
        elif model.key.broker is not None:
            yield Line(_AREA, name, "note", f"at {model.key.broker.url}, which was not asked",
                       "the boot asks it; docs/guides/key-release.md says how to start one")


def _tpm_key(name: str, file: str, key: KeySource, places: list[Path], path: Path) -> Line:
    """Return whether a sealed key is beside the model, else the command that makes it."""
    place = next((each / file for each in places if (each / file).is_file()), Path(file))
    sealed = place.with_name(f"{file}.tpm-key")
    if sealed.is_file():
        return Line(_AREA, name, "yes", f"{sealed}, sealed to a TPM")
    pcrs = ",".join(map(str, key.pcrs or ()))
    return Line(_AREA, name, "no", f"{sealed} is not there: no TPM has the key",
                f"appliance model tpm-seal {place} --key KEY --key-version {key.version or 1} --pcrs {pcrs} "
                f"--measurements IMAGE/measurements.json --policy {path}")


def _key_file(name: str, path: Path) -> Line:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return Line(_AREA, name, "no", f"{path}: {error.strerror}", f"appliance model key {path}, then seal the model")
    shared = mode & 0o077
    return Line(_AREA, name, "no" if shared else "yes", f"{path}, mode {stat.S_IMODE(mode):04o}",
                f"chmod 600 {path}" if shared else "")


def _tenants(policy: Policy, places: list[Path]) -> Iterator[Line]:
    if policy.tenants.authority is None:
        return
    try:
        found = tenants.tenants_of(policy, places)
    except ApplianceError as error:
        yield Line(_AREA, "tenants", "no", error.summary, error.hint or "appliance tenants FILE --policy POLICY")
        return
    yield Line(_AREA, "tenants", "yes", f"list version {found.version}, {len(found.tenants)} tenants")


def _approved(checked: CheckResult, policy: Policy, path: Path) -> Iterator[Line]:
    if policy.approvals is None:
        return
    try:
        counted = approvals.tally(policy, policy_digest(policy), approvals.read(approvals.beside(path)))
    except ApplianceError as error:
        yield Line(_AREA, "approvals", "no", error.summary, f"appliance approve {path}")
        return
    yield Line(_AREA, "approvals", "yes" if counted.enough else "no", str(counted),
               "" if counted.enough else f"appliance approve {path} --key KEY.pem")


def _ports(policy: Policy) -> Iterator[Line]:
    for listener in policy.service.listeners:
        if listener.kind == "unix" or listener.transport == "vsock" or listener.port is None:
            continue
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind(("127.0.0.1", listener.port))
            except OSError as error:
                yield Line(_AREA, f"port {listener.port}", "no" if policy.simulated else "note",
                           f"cannot be listened on: {error.strerror}", "end what listens there, or change the port of "
                           f"the listener {listener.name}")
