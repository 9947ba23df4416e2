"""The files that a policy's service may open. The program and its libraries, what the kernel says
of the machine, models and keys are for reading; devices and sockets that the policy names, for
more. Nothing else."""

from __future__ import annotations

import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import appliance
from appliance.sandbox.landlock import (
    MAKE_DIR,
    MAKE_SOCK,
    READ,
    READ_FILE,
    REMOVE_DIR,
    REMOVE_FILE,
    WRITE_FILE,
    PathRights,
    Ports,
)

if TYPE_CHECKING:  # the process that fetches keys has a sandbox, and no use for policies
    from appliance.policy import Loaded
    from appliance.policy.schema import Policy
    from appliance.policy.schema.keys import KeySource

# Libraries, and what the C library reads to find them and for its settings.
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")
_SETTINGS = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types", "ssl/openssl.cnf", "nsswitch.conf",
             "hosts", "host.conf")
_KERNEL = ("/proc", "/sys/fs/cgroup", "/sys/devices/system", "/sys/kernel/mm/transparent_hugepage")
_MOST_BESIDE = 1000
_DEVICES = ("/dev/urandom", "/dev/random", "/dev/zero")
_TCP_KINDS = ("tcp", "tls", "ra-tls")
_REPORTS = Path("/sys/kernel/config/tsm/report")  # configfs-tsm
_TPM = (Path("/dev/tpmrm0"), Path("/sys/kernel/security"), Path("/sys/class/tpm"))


def _program() -> Iterator[Path]:
    """The interpreter's library, installed packages, and ours."""
    for name in ("stdlib", "platstdlib", "purelib", "platlib"):
        yield Path(sysconfig.get_path(name))
    yield from (Path(folder) for folder in sys.path if folder.startswith((sys.prefix, sys.base_prefix)))
    yield from (Path(folder) for folder in site.getsitepackages())
    yield Path(appliance.__file__).parent


def keys(policy: Policy) -> Iterator[KeySource]:
    """Every key block of a policy."""
    yield from (model.key for model in policy.models if model.key is not None)
    if policy.state is not None:
        yield policy.state.key


def _given(loaded: Loaded) -> Iterator[Path]:
    """Files that the policy names, and those that stand beside it: lists and signatures. No folder
    below."""
    beside = sorted(path for path in loaded.path.parent.iterdir() if path.is_file())
    yield from beside[:_MOST_BESIDE]
    for key in keys(loaded.policy):
        if key.path is not None:
            yield Path(key.path)
    for listener in loaded.policy.service.listeners:
        yield from (Path(path) for path in (listener.certificate, listener.private_key) if path is not None)


def grants(loaded: Loaded, models: Iterable[Path]) -> tuple[PathRights, ...]:
    """The rights of a deployment. `models`: the file of each model."""
    policy = loaded.policy
    read = [*map(Path, (*_LIBRARIES, *_KERNEL, *_DEVICES)), *(Path("/etc") / name for name in _SETTINGS), *_program(),
            loaded.path, *_given(loaded), *models]
    found = [PathRights(path) for path in read]
    found.append(PathRights(Path("/dev/null"), READ_FILE | WRITE_FILE))
    for listener in policy.service.listeners:
        if listener.kind == "unix" and listener.path is not None:
            found.append(PathRights(Path(listener.path).parent, MAKE_SOCK | REMOVE_FILE))
    if policy.state is not None:
        found.append(PathRights(Path(policy.state.device), READ_FILE | WRITE_FILE))
    if not policy.simulated:
        found.append(PathRights(_REPORTS, READ | WRITE_FILE | MAKE_DIR | REMOVE_DIR))
        found += [PathRights(path, READ | WRITE_FILE) for path in _TPM]
    return tuple(found)


def ports(policy: Policy, chosen: int | None) -> Ports:
    """TCP ports of listeners, with the operator's choice where one was made. None to connect to."""
    bind = {chosen if chosen is not None and listener.kind in _TCP_KINDS else listener.port
            for listener in policy.service.listeners
            if listener.kind in ("tcp", "tls", "ra-tls") and listener.transport != "vsock"}
    return Ports(frozenset(port for port in bind if port is not None))
