"""Attacks from inside the sandbox, each in a process of its own: run as `python -m tests.support.sandboxed FOLDER`.

The folder holds `policy.hcl` and a file `secret`. Every attack is a child that enters the sandbox
as a boot does, goes to its stage, and tries. Its outcome goes to standard output as JSON: `ok`,
`errno NAME`, or `signal NAME`. Linux says yes to all of them outside of the sandbox, for root:
`--outside` shows that.
"""

from __future__ import annotations

import _ctypes
import ctypes
import errno
import gc
import json
import mmap
import os
import platform
import resource
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from appliance.constraint import spec
from appliance.policy import Loaded, load
from appliance.sandbox import box, hardening
from tests.constraint import walks
from tests.support.unistd import numbers

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long
NUMBERS = numbers(platform.machine())
FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()


def call(number: int, *arguments: int | bytes | None) -> None:
    """A raw system call; OSError as the kernel says it."""
    given = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    if LIBC.syscall(ctypes.c_long(number), *given) < 0:
        raise OSError(ctypes.get_errno(), "refused")


def named(name: str, *arguments: int | bytes | None) -> Callable[[], None]:
    """A raw system call by its name in the machine's headers."""
    number = NUMBERS[name]
    return lambda: call(number, *arguments)


def _spawn() -> None:
    os.posix_spawn("/bin/true", ["true"], {})


def _fork() -> None:
    if os.fork() == 0:
        os._exit(0)


def _map_executable() -> None:
    mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC).close()


def _map_library() -> None:
    with Path(_ctypes.__file__).open("rb") as file:
        mmap.mmap(file.fileno(), 4096, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC).close()


def _make_executable() -> None:
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    if LIBC.mprotect(ctypes.c_void_p(address), 4096, mmap.PROT_READ | mmap.PROT_EXEC) != 0:
        raise OSError(ctypes.get_errno(), "refused")


def _connect(port: int) -> Callable[[], None]:
    return lambda: socket.create_connection(("127.0.0.1", port or LISTENING.getsockname()[1])).close()


def _bind() -> None:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 39999))


def _abstract() -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.connect(b"\0" + ABSTRACT)


def _in_thread(action: Callable[[], None]) -> Callable[[], None]:
    """The action in a thread that was started before the last filter."""
    go, found = threading.Event(), []

    def work() -> None:
        go.wait()
        try:
            action()
        except OSError as error:
            found.append(error)

    def run() -> None:
        go.set()
        thread.join()
        if found:
            raise found[0]

    thread = threading.Thread(target=work)
    run.before = thread.start  # type: ignore[attr-defined]
    return run


def _old_abi() -> None:
    """getpid by the 32-bit gate of x86: `mov eax, 20; int 0x80; ret`, in a page that was executable before."""
    ctypes.CFUNCTYPE(ctypes.c_int)(GATE)()


def _write(path: str) -> Callable[[], None]:
    return lambda: os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))


def _read(path: str) -> Callable[[], None]:
    return lambda: os.close(os.open(path, os.O_RDONLY))


def _read_state() -> None:
    """Nothing is held but, where the limit of locked memory cannot be raised, the capability to ignore it (14)."""
    may = 1 << 14 if resource.getrlimit(resource.RLIMIT_MEMLOCK)[1] != resource.RLIM_INFINITY else 0
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("Cap") and int(line.split()[1], 16) & ~(may if line[3:6] in ("Prm", "Eff") else 0):
            raise OSError(errno.EPERM, "capabilities are left")


def _constrain() -> None:
    """Compile constraints and take answers through them, in a thread of its own."""
    def work() -> None:
        for asked in (spec.JsonSchema({"properties": {"a": {"format": "date"}}, "required": ["a"]}), spec.JsonObject()):
            walk = walks.compiler().compile(asked).begin()
            for _ in range(20):
                if not walk.ended:
                    walk.accept(walks.allowed(walk)[0])
        done.append(True)
    done: list[bool] = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if done != [True]:
        raise OSError(errno.ENOTRECOVERABLE, "not done")


def _datagram() -> None:
    """Send bytes to a socket of another process by the address in sendmsg's memory, where no filter looks."""
    ours, _other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    ours.sendmsg([b"x"], [], 0, str(MAILBOX))


def _own_filter() -> None:
    """A filter of a thread's own, which allows everything: BPF_RET | BPF_K, SECCOMP_RET_ALLOW. Others that come later
    then reach no thread, if nobody looks."""
    code = ctypes.create_string_buffer(struct.pack("<HBBI", 6, 0, 0, 0x7FFF0000), 8)
    header = struct.pack("<HxxxxxxQ", 1, ctypes.addressof(code))
    stay, made = threading.Event(), threading.Event()

    def work() -> None:
        call(NUMBERS["seccomp"], 1, 0, header)
        made.set()
        stay.wait()

    threading.Thread(target=work, daemon=True).start()
    made.wait()


def _apart() -> None:
    _own_filter()
    box.install("serve", box.Needs())


ATTACKS: dict[str, tuple[str, Callable[[], None]]] = {
    "constraint": ("serve", _constrain),
    "execve": ("serve", lambda: os.execv("/bin/true", ["true"])),  # noqa: S606
    "execve-at-boot": ("boot", lambda: os.execv("/bin/true", ["true"])),  # noqa: S606
    "spawn": ("serve", _spawn), "fork": ("serve", _fork), "fork-at-boot": ("boot", _fork),
    "clone3": ("serve", named("clone3", b"\0" * 88, 88)), "ptrace": ("serve", named("ptrace", 0, 0, 0, 0)),
    "process_vm_readv": ("serve", named("process_vm_readv", os.getppid(), None, 0, None, 0, 0)),
    "process_vm_writev": ("serve", named("process_vm_writev", os.getppid(), None, 0, None, 0, 0)),
    "bpf": ("serve", named("bpf", 0, None, 0)),
    "perf_event_open": ("serve", named("perf_event_open", None, 0, -1, -1, 0)),
    "userfaultfd": ("serve", named("userfaultfd", 0)),
    "io_uring": ("serve", named("io_uring_setup", 1, b"\0" * 120)),
    "keyctl": ("serve", named("keyctl", 0, -3, 0)), "add_key": ("serve", named("add_key", b"user", b"x", b"y", 1, -3)),
    "mount": ("serve", named("mount", b"x", None, b"tmpfs", 0, None)),
    "mount-at-boot": ("boot", named("mount", b"x", None, b"tmpfs", 0, None)),
    "unshare": ("serve", named("unshare", 0x10000000)), "setns": ("serve", named("setns", 0, 0)),
    "chroot": ("serve", lambda: os.chroot("/")), "setuid": ("serve", lambda: os.setuid(1)),
    "capset": ("serve", named("capset", b"\0" * 8, None)), "personality": ("serve", named("personality", 0x40000)),
    "module": ("serve", named("init_module", None, 0, b"")), "kexec": ("serve", named("kexec_load", 0, 0, None, 0)),
    "reboot": ("serve", named("reboot", 0, 0, 0, None)), "pidfd": ("serve", named("pidfd_open", os.getppid(), 0)),
    "handle": ("serve", named("open_by_handle_at", -100, None, 0)),
    "swapon": ("serve", named("swapon", b"/x", 0)), "settime": ("serve", named("clock_settime", 0, None)),
    "pkey_mprotect": ("serve", named("pkey_mprotect", 0, 0, 0, 0)),
    "x32": ("serve", lambda: call(0x40000000 + 39)), "32-bit": ("serve", _old_abi),
    "unknown": ("serve", lambda: call(4000)), "openat2": ("serve", named("openat2", -100, b"/", b"\0" * 24, 24)),
    "memfd": ("serve", lambda: os.close(os.memfd_create("x"))),
    "filter": ("serve", named("seccomp", 1, 0, None)),
    "dumpable": ("serve", named("prctl", 4, 1, 0, 0, 0)),
    "raise-limit": ("serve", lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0))),
    "raise-limit-at-boot": ("boot", lambda: resource.setrlimit(resource.RLIMIT_CORE, (1, 1))),
    "kill": ("serve", lambda: os.kill(os.getppid(), 0)), "kill-at-boot": ("boot", lambda: os.kill(os.getppid(), 0)),
    "tty-input": ("serve", named("ioctl", 0, 0x5412, b"x")), "chmod": ("serve", lambda: FOLDER.chmod(0o755)),
    "executable": ("serve", _map_executable), "executable-at-boot": ("boot", _map_executable),
    "library": ("serve", _map_library), "library-at-boot": ("boot", _map_library),
    "mprotect": ("serve", _make_executable), "mprotect-at-boot": ("boot", _make_executable),
    "write": ("serve", _write(str(FOLDER / "made"))), "write-at-boot": ("boot", _write(str(FOLDER / "made"))),
    "write-policy": ("boot", _write(str(FOLDER / "policy.hcl"))), "write-proc": ("boot", _write("/proc/self/mem")),
    "write-sys": ("boot", _write("/proc/sys/kernel/core_pattern")), "mkdir": ("serve", (FOLDER / "new").mkdir),
    "read-other": ("serve", _read("/etc/shadow")), "read-other-at-boot": ("boot", _read("/etc/shadow")),
    "read-secret": ("serve", _read(str(FOLDER / "outside" / "secret"))),
    "unlink": ("serve", (FOLDER / "outside" / "secret").unlink), "read-disk": ("boot", _read("/dev/kmsg")),
    "datagram": ("serve", _datagram), "datagram-at-boot": ("boot", _datagram), "apart": ("load", _apart),
    "limit-of-another": ("boot", lambda: resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (4096, 4096))),
    "affinity-of-another": ("boot", lambda: os.sched_setaffinity(os.getppid(), os.sched_getaffinity(0))),
    "socket": ("serve", lambda: socket.socket().close()),
    "socket-in-thread": ("serve", _in_thread(lambda: socket.socket().close())),
    "setuid-in-thread": ("serve", _in_thread(lambda: os.setuid(1))),
    "connect-at-boot": ("boot", _connect(0)), "connect-in-load": ("load", _connect(0)), "bind": ("boot", _bind),
    "udp": ("boot", lambda: socket.socket(type=socket.SOCK_DGRAM).close()),
    "raw": ("boot", lambda: socket.socket(type=socket.SOCK_RAW).close()),
    "netlink": ("boot", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).close()),
    "vsock": ("boot", lambda: socket.socket(socket.AF_VSOCK).close()),
    "packet": ("boot", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()),
    "sctp": ("boot", lambda: socket.socket(proto=262).close()), "abstract": ("boot", _abstract),
    # and what must still work
    "thread": ("serve", lambda: threading.Thread(target=int).start()), "capabilities": ("serve", _read_state),
    "read-policy": ("serve", _read(str(FOLDER / "policy.hcl"))), "abort": ("serve", os.abort),
}

LISTENING = socket.create_server(("127.0.0.1", 0)) if len(sys.argv) > 1 and Path(sys.argv[1]).is_dir() else None
ABSTRACT = f"imgc-{os.getpid()}".encode()
MAILBOX = FOLDER / "mailbox"
GATE = 0


def _prepare() -> None:
    """Things that the attacks need from before the sandbox."""
    global GATE, _PAGE, _BOUND, _MAILBOX
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    _PAGE = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    _PAGE.write(bytes.fromhex("b814000000cd80c3") if platform.machine() == "x86_64" else struct.pack("<I", 0xD65F03C0))
    GATE = ctypes.addressof(ctypes.c_char.from_buffer(_PAGE))
    _MAILBOX = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    MAILBOX.unlink(missing_ok=True)
    _MAILBOX.bind(str(MAILBOX))
    _BOUND = socket.socket(socket.AF_UNIX)
    _BOUND.bind(b"\0" + ABSTRACT)
    _BOUND.listen()


def _attack(stage: str, action: Callable[[], None], loaded: Loaded | None) -> None:
    """In a child: enter, go to the stage, try. Its exit code is the errno, 0 if nothing was refused."""
    try:
        _enter(stage, getattr(action, "before", int), loaded)
    except BaseException as error:  # noqa: BLE001
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        os._exit(253)
    try:
        action()
    except OSError as error:
        os._exit(error.errno or 255)
    except ValueError:  # what Python makes of EPERM from setrlimit(2)
        os._exit(errno.EPERM)
    except BaseException:  # noqa: BLE001
        os._exit(254)
    os._exit(0)


def _enter(stage: str, before: Callable[[], object], loaded: Loaded | None) -> None:
    """The sandbox as a boot on a hardware platform enters it, by a policy; `before` runs ahead of the stage's filter.
    """
    if loaded is None:
        before()
        return
    hardening.harden(tolerant=False)
    entered = box.enter(loaded, prebuilt=True, tolerant=False)
    if stage != "boot":
        entered.tighten("load")
    before()
    if stage == "serve":
        entered.tighten("serve")


def outcome(status: int) -> str:
    """A wait status in words."""
    if os.WIFSIGNALED(status):
        return f"signal {signal.Signals(os.WTERMSIG(status)).name}"
    code = os.waitstatus_to_exitcode(status)
    return "ok" if code == 0 else f"errno {errno.errorcode.get(code, code)}"


def main() -> None:
    """Try every attack that is named, or all."""
    loaded = None if "--outside" in sys.argv else load(FOLDER / "policy.hcl")  # once: it takes longer than an attack
    names = [name for name in sys.argv[2:] if name != "--outside"] or list(ATTACKS)
    if loaded is not None:
        box.needs(loaded.policy, prebuilt=True)  # imports what each child would else import by itself
    _prepare()
    gc.freeze()  # what a child looked through would be copied for it
    found = {}
    for name in names:
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            _attack(*ATTACKS[name], loaded)
        found[name] = outcome(os.waitpid(child, 0)[1])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
