"""Process 1 of the image: mount, switch kernel features off, bring up the network, find the disks, start the service.

The initrd's init (image/init/init.c) has checked the command line and mounted the verity root before this runs.
Nothing is read that the host can set but DHCP's answer and the disks' names and contents: an address gives the host
nothing that it lacks, models are checked against their pins, and state is sealed.

Whatever fails, and the end of the service, powers the machine off. One line on the console for each step.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from appliance.boot import init_disks, init_mounts, init_network, init_power

BAKED, GIVEN = Path("/etc/appliance/deployment.hcl"), Path("/run/appliance/policy/deployment.hcl")
SYSCTL = Path("/etc/appliance/sysctl.conf")
MODELS = Path("/models")
PYTHON = ("/usr/bin/python3.13", "-I", "-B", "-X", "utf8")
ENVIRONMENT = {"LANG": "C.UTF-8", "NO_COLOR": "1", "TERM": "dumb"}


def main() -> None:
    """Never returns: the machine goes off."""
    try:
        step("mounts", init_mounts.mount_all)
        step("network", init_network.bring_up)
        step("disks", lambda: init_disks.mount_models(MODELS))
        step("sysctl", lambda: init_mounts.apply_sysctl(SYSCTL))
        policy = find_policy()
        say(f"service starts, policy {policy}")
        say(f"service ended: {supervise(start('appliance', 'serve', str(policy), '--models', str(MODELS)))}")
    except Exception as error:  # noqa: BLE001  whatever it was, the machine goes off
        say(f"failed: {type(error).__name__}: {error}")
    init_power.off()


def step(name: str, action: Callable[[], str]) -> None:
    """Run one step and write its verdict. An OSError becomes one line and the end."""
    begun = time.monotonic()
    detail = action()
    say(f"{name:<10} ok {time.monotonic() - begun:6.2f} s  {detail}")


def say(text: str) -> None:
    """One line on the console, with the seconds since the kernel started."""
    sys.stderr.write(f"init {time.clock_gettime(time.CLOCK_BOOTTIME):7.2f}: {text}\n")
    sys.stderr.flush()


def find_policy() -> Path:
    """The baked policy, or the launch disk's, which a process of its own reads. OSError when there is none."""
    if BAKED.is_file():
        return BAKED
    disk = init_disks.find(init_disks.LAUNCH_ROLE)
    ended = supervise(start("appliance.boot.init_policy", *([str(disk)] if disk else [])))
    if ended != "exit code 0":
        raise OSError(f"no policy: {ended}")
    return GIVEN


def start(module: str, *arguments: str) -> int:
    """A process that runs a module; its standard output is the audit port where there is one, else the console."""
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            port = init_disks.audit_port()
            if port is not None:
                os.dup2(os.open(port, os.O_WRONLY), 1)
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            os.execve(PYTHON[0], (*PYTHON, "-m", module, *arguments), ENVIRONMENT)  # noqa: S606  no shell
        finally:
            os._exit(127)
    return child


def supervise(child: int) -> str:
    """Collect processes until the service has ended; says how."""
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
    while True:
        process, status = os.wait()
        if process == child:
            code = os.waitstatus_to_exitcode(status)
            return f"exit code {code}" if code >= 0 else f"signal {-code}"


if __name__ == "__main__":
    main()
