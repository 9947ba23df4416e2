"""Run a built image under QEMU: disks, network card, firmware, TPM; the guest's console goes to
standard output."""

from __future__ import annotations

import contextlib
import errno
import re
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.boot import checks
from appliance.boot.placement import launchdisk
from appliance.errors import ImageError
from appliance.imaging.qemu import accelerator, confidential
from appliance.imaging.qemu.machine import FIRMWARE, Forward, Machine, Reach
from appliance.imaging.qemu.softtpm import SoftTpm
from appliance.imaging.recipe import manifest
from appliance.policy import Loaded
from appliance.signed import approvals

_QEMU = "qemu-system-x86_64"
_VHOST_VSOCK = Path("/dev/vhost-vsock")
_ENDED = re.compile(rb"init +[\d.]+: service ended: exit code 0\r?\n")


@dataclass(frozen=True)
class Options:
    """The operator's choices; the guest trusts none of them."""

    image: Path
    models: Path | None = None  # a folder, which is packed, or a disk
    add: tuple[Path, ...] = ()  # further files for a disk that is packed: a tenant list, say
    state: Path | None = None
    policy: Loaded | None = None  # for an image without one
    collateral: Path | None = None  # documents of the host's, which the guest passes on
    audit: Path | None = None  # a file for the audit log; else it is on the console
    firmware: Path | None = None
    memory: int = 768  # MiB
    cpus: int = 1
    port: int | None = 8080  # of this machine's loopback
    broker: Reach | None = None  # the only thing that the guest may connect to
    vsock: int | None = None  # the guest's number on the host's vsock
    accelerator: str = "auto"  # kvm, tcg
    direct: bool = False  # no firmware: QEMU loads the kernel
    tpm: bool = False
    tpm_state: Path | None = None  # where the TPM's state is kept
    confidential: str = "auto"  # snp, tdx, none
    extra: tuple[str, ...] = ()  # further words for QEMU


def boot(options: Options, *, console: Callable[[bytes], None], seconds: float | None = None) -> int:
    """Run until the guest is off (or the time is over); 0 when its service ended well, else 1.
    Raises ImageError if QEMU cannot be started."""
    with machine(options) as command, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors)  # noqa: S603
        with _killed_after(process, seconds) as is_over:
            ended = _copy(process, console)
        code = process.wait()
        if code != 0 and not is_over():
            errors.seek(0)
            raise _ended_early(code, errors.read().decode(errors="replace").strip(), options)
    return 0 if ended else 1


def address(options: Options) -> str | None:
    """Return the address on this machine that leads to the guest's service. None if nothing
    does."""
    places = _places(options, manifest.read(options.image))
    if options.port is None or not places:
        return None
    return f"{'http' if places[0]['kind'] == 'tcp' else 'https'}://127.0.0.1:{options.port}"


def _ended_early(code: int, said: str, options: Options) -> ImageError:
    """Return the error of a QEMU that failed, or that somebody ended: what happened, and what to
    do."""
    if code == -signal.SIGKILL:
        return ImageError("QEMU was killed (SIGKILL), as the kernel does where memory is short", code="qemu-killed",
                          hint=f"see `dmesg`; the guest has --memory {options.memory} (MiB) of this machine's memory")
    if code < 0:
        return ImageError(f"QEMU was ended by {signal.Signals(-code).name}", code="qemu-killed",
                          hint="somebody ended it: start it again")
    return ImageError(f"QEMU ended with {code}: {said}", code="qemu-failed",
                      hint="its own words say why; with --qemu it gets further arguments")


@contextlib.contextmanager
def machine(options: Options) -> Iterator[list[str]]:
    """Yield the command that runs an image. Its helpers (TPM, packed models) live as long as the
    context."""
    document = manifest.read(options.image)
    qemu = shutil.which(_QEMU)
    if qemu is None:
        raise ImageError(f"{_QEMU} is not installed", hint="apt-get install qemu-system-x86", code="tool-missing")
    if options.vsock is not None and not _VHOST_VSOCK.exists():
        raise ImageError(f"{_VHOST_VSOCK} is not there", hint="modprobe vhost_vsock, on the machine that runs guests",
                         code="tool-missing")
    _one_policy(options, document)
    if options.state is not None and not options.state.exists():
        raise ImageError(f"{options.state} is not there", hint=f"make a disk: truncate -s 1G {options.state}")
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="appliance-boot-")))
        tpm = None
        if options.tpm or options.tpm_state is not None:
            tpm = SoftTpm(options.tpm_state or scratch / "tpm")
            stack.callback(tpm.close)
        kind = confidential.offered(qemu) if options.confidential == "auto" else options.confidential
        words = confidential.arguments(kind, options.memory, options.policy) if kind in confidential.KINDS else ()
        if any(isinstance(way, Forward) for way in _forwards(options, document)):
            _require_free(options.port)
        firmware = options.firmware or (confidential.firmware(kind) if words and kind else FIRMWARE[0])
        yield Machine(
            folder=options.image, accelerator="kvm" if words else _accelerator(options, qemu), memory=options.memory,
            cpus=options.cpus, variables=None if options.direct or words else _variables(scratch),
            tpm=tpm.socket if tpm else None, models=_models(options, scratch), state=options.state,
            launch=_launch(options.policy, scratch), collateral=options.collateral, audit=options.audit,
            forwards=_forwards(options, document), vsock=options.vsock, confidential=words, firmware=firmware,
            extra=options.extra).command(qemu)


def _require_free(port: int | None) -> None:
    """Refuse a port of the loopback that QEMU could not listen on, before anything else starts."""
    with socket.socket(socket.AF_INET) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as QEMU has it
        try:
            trial.bind(("127.0.0.1", port or 0))
            trial.listen(1)
        except OSError as error:
            what = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be listened on: {error.strerror}"
            raise ImageError(f"port {port} of this machine's loopback {what}", code="port-in-use",
                             hint="end what listens there, or choose another: --port PORT") from None


def _one_policy(options: Options, document: dict[str, Any]) -> None:
    """Refuse another policy for an image that has its own, and would ignore it.
    """
    baked = document.get("policy", {}).get("sha384")
    if options.policy is not None and baked not in (None, options.policy.digest.hex()):
        raise ImageError(f"{options.policy.path}: the image has a policy of its own, {baked[:16]}…, and would not "
                         "look at this one", hint="leave --policy out, or build an image without a policy")


def _launch(policy: Loaded | None, scratch: Path) -> Path | None:
    """Return a launch disk (docs/formats/launch-disk.md) with the policy, and the approvals beside
    it."""
    if policy is None:
        return None
    if unkept := list(checks.unkept(policy)):
        raise ImageError("; ".join(unkept), hint="no image of this version boots by this policy: appliance check "
                         f"{policy.path}", code="policy-not-met-here")
    disk = scratch / "launch.img"
    with tarfile.open(disk, "w", format=tarfile.USTAR_FORMAT) as archive:
        archive.add(policy.path, launchdisk.POLICY, filter=_plain)
        if policy.policy.approvals is not None and (signed := approvals.beside(policy.path)).is_file():
            archive.add(signed, approvals.beside(Path(launchdisk.POLICY)).name, filter=_plain)
    return disk


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Nothing of this machine's user or time."""
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


def _accelerator(options: Options, qemu: str) -> str:
    if options.accelerator != "auto":
        return options.accelerator
    return "kvm" if accelerator.kvm_works(qemu, options.image) else "tcg"


def _variables(scratch: Path) -> Path:
    """Return a fresh store of firmware variables."""
    if not all(path.is_file() for path in FIRMWARE):
        raise ImageError(f"{FIRMWARE[0]} is not there", code="tool-missing",
                         hint="apt-get install ovmf, or boot without firmware: --direct")
    return Path(shutil.copy(FIRMWARE[1], scratch / "variables.fd"))


def _models(options: Options, scratch: Path) -> Path | None:
    """Return a disk with models: as it is, or packed from a folder's files and those to add."""
    source = options.models
    if source is not None and not source.is_dir():
        if options.add:
            raise ImageError(f"{source} is a disk: nothing can be added to it", hint="name a folder of models")
        if not source.exists():
            raise ImageError(f"{source} is neither a folder nor a disk")
        return source
    if source is None and not options.add:
        return None
    folder = source
    if options.add:
        folder = scratch / "models"
        folder.mkdir()
        for path in (*(source.iterdir() if source else ()), *options.add):
            _same(path, folder / path.name)
    disk = scratch / "models.img"
    if folder is not None:
        pack_models(folder, disk)
    return disk


def _same(path: Path, place: Path) -> None:
    """The same file at another place: a hard link, or a copy where there can be none."""
    try:
        place.hardlink_to(path.resolve())
    except FileExistsError:
        raise ImageError(f"{path.name} is there twice") from None
    except OSError:
        shutil.copy(path, place)


def pack_models(folder: Path, disk: Path) -> None:
    """A folder's files as an erofs disk, uncompressed. Raises ImageError if it cannot be made."""
    tool = shutil.which("mkfs.erofs")
    if tool is None:
        raise ImageError("mkfs.erofs is not installed", hint="apt-get install erofs-utils", code="tool-missing")
    done = subprocess.run([tool, "-T0", "-x-1", "--all-root", str(disk), str(folder)], capture_output=True, text=True,  # noqa: S603
                          check=False)
    if done.returncode != 0:
        raise ImageError(f"mkfs.erofs: {done.stderr.strip()[-500:]}", code="tool-failed")


def _forwards(options: Options, document: dict[str, Any]) -> tuple[Forward | Reach, ...]:
    """Return the policy's first TCP listener on the chosen port, and the way to the broker."""
    ways: list[Forward | Reach] = [] if options.broker is None else [options.broker]
    places = _places(options, document)
    if options.port is not None and places:
        guest = "127.0.0.1" if places[0]["loopback"] else ""
        ways.append(Forward(options.port, int(places[0]["port"]), guest))
    return tuple(ways)


def _places(options: Options, document: dict[str, Any]) -> list[dict[str, Any]]:
    """Where the service listens in the guest by TCP, by its policy."""
    places = manifest.listeners(options.policy) if options.policy else document.get("listeners")
    return places if isinstance(places, list) else []


def _copy(process: subprocess.Popen[bytes], console: Callable[[bytes], None]) -> bool:
    """Copy the console; whether the guest said that its service ended well."""
    ended = False
    if process.stdout is not None:
        for line in process.stdout:
            console(line)
            ended = ended or _ENDED.search(line) is not None
    return ended


@contextlib.contextmanager
def _killed_after(process: subprocess.Popen[bytes], seconds: float | None) -> Iterator[Callable[[], bool]]:
    """Kill the process when the time is over, or when the body is left early. Yields what tells
    whether the time was over."""
    over = threading.Event()

    def end() -> None:
        over.set()
        process.kill()

    timer = threading.Timer(seconds, end) if seconds is not None else None
    if timer is not None:
        timer.start()
    try:
        yield over.is_set
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        if timer is not None:
            timer.cancel()
