"""Process 1 of the image: mount, switch kernel features off, bring up the network, find the disks,
start the service.

The initrd's init (image/init/init.c) has checked the command line and mounted the verity root
before this runs. Nothing is read that the host can set but DHCP's answers and the disks' names and
contents. An address gives the host nothing that it lacks, models are checked against their pins,
and state is sealed.

Any failure, and the end of the service, powers the machine off. One line on the console for each
step.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from appliance import isolated
from appliance.guest import disks, gate, mounts, power
from appliance.guest.network import Network

BAKED, GIVEN = Path("/etc/appliance/deployment.hcl"), Path("/run/appliance/policy/deployment.hcl")
SYSCTL = Path("/etc/appliance/sysctl.conf")
MODELS = Path("/models")
REPORT = Path("/run/boot-report.json")  # boot/report.py reads it, for /health
PYTHON = ("/usr/bin/python3.13", "-I", "-B", "-X", "utf8")
_LONG = 86400.0  # seconds
ENVIRONMENT = {**isolated.SET, "NO_COLOR": "1", "TERM": "dumb"}


def main() -> None:
    """Never returns: the machine goes off."""
    network = Network()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})  # waited for, together with the time
    try:
        step("mounts", mounts.mount_all)
        step("gate", gate.look)
        step("network", network.bring_up)
        step("disks", lambda: disks.mount_models(MODELS))
        step("sysctl", lambda: mounts.apply_sysctl(SYSCTL))
        policy = find_policy()
        REPORT.write_text(json.dumps(_steps), encoding="utf-8")
        say(f"service starts, policy {policy}")
        service = start("appliance", "serve", str(policy), "--models", str(MODELS))
        say(f"service ended: {supervise(service, network)}")
    except Exception as error:  # noqa: BLE001  whatever it was, the machine goes off
        say(f"failed: {type(error).__name__}: {error}")
    power.off()


_steps: list[dict[str, str | int]] = []


def step(name: str, action: Callable[[], str]) -> None:
    """Run one step, write its verdict, and keep it for the report. An OSError becomes one line and
    the end."""
    begun = time.monotonic_ns()
    detail = action()
    took = (time.monotonic_ns() - begun) // 1000
    _steps.append({"name": name, "verdict": "passed", "duration_us": took, "detail": detail})
    say(f"{name:<10} ok {took / 1e6:6.2f} s  {detail}")


def say(text: str) -> None:
    """One line on the console, with the seconds since the kernel started."""
    sys.stderr.write(f"init {time.clock_gettime(time.CLOCK_BOOTTIME):7.2f}: {text}\n")
    sys.stderr.flush()


def find_policy() -> Path:
    """Return the baked policy, or the launch disk's, which a process of its own reads. Raises
    OSError if there is none."""
    if BAKED.is_file():
        return BAKED
    disk = disks.find(disks.LAUNCH_ROLE)
    ended = supervise(start("appliance.boot.placement.read_disk", *([str(disk)] if disk else [])))
    if ended != "exit code 0":
        raise OSError(f"no policy: {ended}")
    return GIVEN


def start(module: str, *arguments: str) -> int:
    """Start a process that runs a module, and return its id; its standard output is the audit port
    where there is one, else the console."""
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            port = disks.audit_port()
            if port is not None:
                os.dup2(os.open(port, os.O_WRONLY), 1)
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            os.execve(PYTHON[0], (*PYTHON, "-m", module, *arguments), ENVIRONMENT)  # noqa: S606  no shell
        finally:
            os._exit(127)
    return child


def supervise(child: int, network: Network | None = None) -> str:
    """Collect processes, and keep the network's addresses, until the service has ended; says how.
    SIGCHLD must be blocked."""
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
    while True:
        process, status = os.waitpid(-1, os.WNOHANG)
        if process == child:
            code = os.waitstatus_to_exitcode(status)
            return f"exit code {code}" if code >= 0 else f"signal {-code}"
        if process == 0:
            rest = network.rest() if network else None
            signal.sigtimedwait({signal.SIGCHLD}, _LONG if rest is None else rest)
            if network:
                network.keep(say)


if __name__ == "__main__":
    main()
