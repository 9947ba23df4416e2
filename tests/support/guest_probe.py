"""Runs in a guest in the service's place, as root with every capability, and tries what the image must refuse.

One line of JSON on the console for each attempt: name, and "refused: why" or "DONE". It must not import the project,
but for `control_group`, in a process of its own.
"""

import ctypes
import json
import os
import resource
import socket
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
# arch/x86/entry/syscalls/syscall_64.tbl
CALLS = {"iopl": (172, 3), "kexec_load": (246, 0, 0, 0, 0), "kexec_file_load": (320, -1, -1, 0, b"", 8),
         "init_module": (175, b"x" * 64, 64, b""), "io_uring_setup": (425, 1, b"\0" * 120),
         "user_namespace": (272, 0x10000000)}


def attempt(name, action):
    """Try one thing and tell what came of it."""
    try:
        found = action()
        verdict = "DONE" if found is None else f"found: {found}"
    except OSError as error:
        verdict = f"refused: {error.strerror}"
    except Exception as error:
        verdict = f"refused: {type(error).__name__}"
    sys.stdout.write(json.dumps({"probe": name, "verdict": verdict}) + "\n")
    sys.stdout.flush()


def call(number, *arguments):
    """A raw system call; OSError as the kernel says it."""
    wrapped = [ctypes.c_char_p(a) if isinstance(a, bytes) else ctypes.c_long(a) for a in arguments]
    if LIBC.syscall(ctypes.c_long(number), *wrapped) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def mount(kind, target, flags=0, source=b"none"):
    """Call mount(2)."""
    if LIBC.mount(source, target.encode(), kind, ctypes.c_ulong(flags), None) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def write(path, data=b"x"):
    """Open for writing and write."""
    with open(path, "r+b" if os.path.exists(path) else "wb", buffering=0) as file:
        file.write(data)


def read(path, size=64):
    """Read some bytes."""
    with open(path, "rb", buffering=0) as file:
        file.read(size)


def text(path):
    """A file's text, as a finding."""
    with open(path) as file:
        return file.read().strip()


def run_from(folder):
    """Copy the interpreter to a folder and start it there."""
    program = f"{folder}/program"
    with open("/usr/bin/python3.13", "rb") as source, open(program, "wb") as target:
        target.write(source.read(1 << 20))
    os.chmod(program, 0o755)
    child = os.fork()
    if child == 0:
        try:
            os.execv(program, [program])
        except OSError as error:
            os._exit(error.errno)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.unlink(program)
    if code:
        raise OSError(code, os.strerror(code))


def dump_core():
    """Crash with no limit on core files, and look for one."""
    before = {(d, f) for d in ("/tmp", "/run", "/") for f in os.listdir(d)}
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        os.chdir("/tmp")
        os.abort()
    status = os.waitpid(child, 0)[1]
    after = {(d, f) for d in ("/tmp", "/run", "/") for f in os.listdir(d)}
    if after - before or os.WCOREDUMP(status):
        return
    raise OSError(1, "no core file")


def egress():
    """Reach a host outside."""
    with socket.create_connection(("10.0.2.2", 80), timeout=2):
        pass


def processes():
    """Those with a command line; kernel threads have none."""
    return [number for number in os.listdir("/proc") if number.isdigit() and text(f"/proc/{number}/cmdline")]


def control_group():
    """Show what the project reads of control groups of version 2. This kernel has their memory
    controller. The disk of the models has the module with which the benchmarks make groups, and a
    policy."""
    mount(b"cgroup2", "/sys/fs/cgroup")
    sys.path.append("/models")
    from cgroups import Group

    group = Group("probe", 300 << 20)
    found = {"version": group.version}
    for name, limit, action in (("room", 300 << 20, in_group), ("refusal", 96 << 20, in_group),
                                ("killed", 48 << 20, lambda: len(bytearray(64 << 20)))):
        (group.folder / "memory.max").write_text(str(limit))
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            group.enter()
            os.write(theirs, json.dumps(action()).encode())
            os._exit(0)
        os.close(theirs)
        status = os.waitpid(child, 0)[1]
        with os.fdopen(ours) as answer:
            found[name] = answer.read() or f"signal {os.WTERMSIG(status)}"
    found |= {"peak": group.peak() > 8 << 20, "kills": group.killed(), "stat": sorted(group.stat())}
    group.close()
    return json.dumps({**found, "closed": not group.folder.exists()})


def in_group():
    """The limit that is found, and what a boot would say."""
    from pathlib import Path

    from appliance.boot.planning import budget, machine
    from appliance.models.catalogue import Catalogue
    from appliance.policy import load

    loaded = load(Path("/models/limits.hcl"))
    catalogue = Catalogue({"tiny": Path("/models/tiny.gguf")})
    division = budget.divide(loaded.policy, catalogue, machine.available_memory())
    return {"limit": machine.group_limit(), "room": machine.group_room(), "refusal": division.refusal}


def main():
    """Every attempt in turn."""
    attempt("writable mounts", lambda: sorted(line.split()[1] for line in text("/proc/mounts").splitlines()
                                              if "rw" in line.split()[3].split(",")))
    for name, (number, *arguments) in CALLS.items():
        attempt(name, lambda number=number, arguments=arguments: call(number, *arguments))
    for path in ("/usr/bin/x", "/etc/appliance/deployment.hcl", "/x", "/models/x", "/usr/bin/python3.13"):
        attempt(f"write {path}", lambda path=path: write(path))
    attempt("remount root writable", lambda: mount(None, "/", 32))
    for disk in ("dm-0", "vda", "vdb"):
        attempt(f"write /dev/{disk}", lambda disk=disk: write(f"/dev/{disk}"))
    for path in ("/dev/mem", "/dev/port", "/proc/kcore", "/dev/cpu/0/msr", "/dev/kmem", "/sys/firmware/efi/efivars/x"):
        attempt(f"read {path}", lambda path=path: read(path))
    for kind in (b"debugfs", b"efivarfs", b"ext4", b"squashfs", b"vfat", b"fuse", b"overlay", b"binfmt_misc"):
        attempt(f"mount {kind.decode()}", lambda kind=kind: mount(kind, "/models"))
    for key in ("kernel/core_pattern", "kernel/modprobe", "kernel/modules_disabled", "kernel/yama/ptrace_scope"):
        attempt(f"sysctl {key}", lambda key=key: write(f"/proc/sys/{key}", b"0"))
    attempt("lower lockdown", lambda: write("/sys/kernel/security/lockdown", b"none"))
    attempt("lower lockdown, writable", lambda: (mount(None, "/sys/kernel/security", 32),
                                                  write("/sys/kernel/security/lockdown", b"none"))[0])
    for folder in ("/tmp", "/run", "/dev/shm", "/dev"):
        attempt(f"run from {folder}", lambda folder=folder: run_from(folder))
    for name in ("sh", "bash", "busybox", "perl", "mount", "ld.so"):
        attempt(f"start {name}", lambda name=name: os.execvp(name, [name]))
    attempt("core dump", dump_core)
    attempt("connect out", egress)
    attempt("vsock without a listener for it", lambda: socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).close())
    attempt("lockdown", lambda: text("/sys/kernel/security/lockdown"))
    attempt("swaps", lambda: text("/proc/swaps").count("\n"))
    attempt("modules disabled", lambda: text("/proc/sys/kernel/modules_disabled"))
    attempt("pid 1", lambda: text("/proc/1/cmdline").replace("\0", " "))
    attempt("processes", processes)
    attempt("environment", lambda: dict(os.environ))
    attempt("control group", control_group)


def free_memory_is_wiped():
    """The kernel's own word on memory that it gives out and takes back."""
    descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    try:
        while True:
            line = os.read(descriptor, 8192).decode(errors="replace")
            if "mem auto-init" in line:
                return line.split(";", 1)[1].strip()
    except BlockingIOError:
        return "not said"


def add_arguments(parser):
    """Stand in for the service's verb."""
    parser.add_argument("rest", nargs="*")
    parser.add_argument("--models")


def run(args):
    """Try everything; the service's exit code."""
    attempt("memory", free_memory_is_wiped)
    main()
    return 0
