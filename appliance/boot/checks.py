"""Whether this machine and this version can keep what the policy promises; asked before anything
else is done.

All findings are collected and told together. Nothing in a policy is ever silently ignored: a field
that this version does not enforce stops the boot by its name.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from appliance import platforms
from appliance.boot.planning import budget, fitness, machine
from appliance.boot.planning.footprint import mebibytes
from appliance.errors import BootError, FormatError, ModelError, UnsupportedError
from appliance.models.catalogue import Catalogue
from appliance.models.file import shards
from appliance.policy import Loaded, Policy, enforcement
from appliance.policy.bind import path_text


@dataclass(frozen=True)
class Operator:
    """The operator's choices at boot. Each choice must be granted by the policy's
    `service.operator_may_set`."""

    listen_address: str | None = None
    listen_port: int | None = None
    log_sink: Path | None = None


def platform(policy: Policy) -> Iterator[str]:
    """The policy's platforms must be ones that this version can attest; whether the machine is one
    shows just after."""
    missing = [name for name in policy.tee.platforms if name not in platforms.NAMES]
    if missing:
        yield (f"tee.platforms: {', '.join(missing)} cannot be attested by this version; "
               f"expected {', '.join(platforms.NAMES)}")


def operator_choices(policy: Policy, operator: Operator) -> Iterator[str]:
    """A choice that the policy does not grant is refused."""
    for name in ("listen_address", "listen_port", "log_sink"):
        if getattr(operator, name) is not None and name not in policy.service.operator_may_set:
            yield f"{name}: the policy does not let the operator set it; expected it in service.operator_may_set"


def unkept(loaded: Loaded) -> Iterator[str]:
    """A field that asks for something this version does not do is refused by its name and place."""
    for path, reason in enforcement.unbootable(loaded.policy):
        if path != ("tee", "platforms"):  # `platform` says it better
            place = loaded.positions.of(path)
            field = path_text(path, loaded.policy.appliance.schema_version)
            yield f"{field} ({loaded.path.name}:{place.line}:{place.column}): {reason}"


def model_files(files: Mapping[str, Path]) -> Iterator[str]:
    """Every model's file, with all shards, must be there and be a plain file. The pins decide later
    on its content."""
    for name, path in ((name, path) for name, first in files.items() for path in _shards(first)):
        try:
            mode = path.stat().st_mode
        except OSError as error:
            yield (f"model {name}: {path}: {error.strerror}; it is looked for beside the policy and in the folders "
                   "given by --models")
            continue
        if not stat.S_ISREG(mode):
            yield f"model {name}: {path} is not a regular file"


def _shards(path: Path) -> tuple[Path, ...]:
    try:
        return shards.files(path)
    except ModelError:  # which `fit` tells
        return (path,)


def fit(policy: Policy, catalogue: Catalogue) -> Iterator[str]:
    """Every model's file must be one that can run here, by its header; tokenizers and templates the
    step `models` looks at. Of a damaged sealed file, and of a disk that fails, that step tells
    more."""
    for model, error in fitness.refusals(policy, catalogue):
        file = catalogue.of(model)
        if isinstance(error, UnsupportedError) or (isinstance(error, FormatError) and not file.sealed):
            yield fitness.description(model.name, file.path, error)


def memory(policy: Policy, catalogue: Catalogue, total: int | None, available: int | None) -> Iterator[str]:
    """The budget must exist on this machine; weights, keys and values must fit into it and into
    what is free."""
    limit = policy.tee.memory_budget_bytes
    if limit is not None and total is not None and limit > total:
        yield f"tee.memory_budget: {mebibytes(limit)}, but the machine has {mebibytes(total)}"
    room = min((size for size in (limit, available) if size is not None), default=None)
    missing = budget.divide(policy, catalogue, room).refusal
    if missing is not None:
        yield f"memory: {missing}"


def templates(policy: Policy) -> Iterator[str]:
    """Chat templates that no model could use; of the models' own the step `models` tells, once they
    are read."""
    for model, error in fitness.template_refusals(policy):
        yield f"model {model.name}: {error.summary}"


def private_files(policy: Policy) -> Iterator[str]:
    """A private key that others on the machine can read is refused."""
    for listener in policy.service.listeners:
        if listener.private_key is None:
            continue
        path = Path(listener.private_key)
        try:
            mode = path.stat().st_mode
        except OSError as error:
            yield f"listener {listener.name}: private key {path}: {error.strerror}"
            continue
        if mode & 0o077:
            yield f"listener {listener.name}: private key {path} has mode {stat.S_IMODE(mode):04o}, expected 0600"


def find_models(policy: Policy, folders: list[Path]) -> dict[str, Path]:
    """The file of each model: the first of the folders that has it (the policy's own comes first).
    """
    found = {}
    for model in policy.models:
        candidates = [folder / model.file for folder in folders]
        # os.path has no errors of its own where a folder cannot be entered or its disk fails:
        # `model_files` names them
        found[model.name] = next((path for path in candidates if os.path.exists(path)), candidates[0])  # noqa: PTH110
    return found


def check(loaded: Loaded, operator: Operator, catalogue: Catalogue) -> None:
    """Run every check. Raises BootError with all findings."""
    policy = loaded.policy
    unfit = [*fit(policy, catalogue)]  # their memory is nothing to tell of
    findings = [
        *platform(policy), *unkept(loaded), *operator_choices(policy, operator), *model_files(catalogue.paths), *unfit,
        *([] if unfit else memory(policy, catalogue, machine.total_memory(), machine.available_memory())),
        *templates(policy), *private_files(policy)]
    if findings:
        raise BootError("; ".join(findings), code="policy-not-met-here",
                        hint="change the policy, or boot on a machine that meets it")
