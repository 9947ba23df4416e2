"""A Docker daemon for tests: the machine's, or our own while the test runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import require, waiting
from tests.support.require import absent


@contextmanager
def docker_daemon() -> Iterator[None]:
    """DOCKER_HOST leads to a daemon inside. Ours has no network, keeps nothing, and needs root."""
    require.guests()
    if _answers():
        yield
        return
    if shutil.which("dockerd") is None or os.geteuid() != 0:
        absent("a Docker daemon: Debian package docker.io, started, or root so that the test starts it")
    folder = Path(tempfile.mkdtemp(prefix="appliance-docker-"))
    socket = f"unix://{folder}/docker.sock"
    with (folder / "log").open("wb") as log:
        daemon = subprocess.Popen(
            ["dockerd", "--data-root", str(folder / "data"), "--exec-root", str(folder / "exec"), "-H", socket,
             "--pidfile", str(folder / "pid"), "--bridge=none", "--iptables=false", "--ip6tables=false"],
            stdout=log, stderr=log)
    before = os.environ.get("DOCKER_HOST")
    os.environ["DOCKER_HOST"] = socket
    try:
        _wait(daemon, folder / "log")
        yield
    finally:
        daemon.terminate()
        daemon.wait(30)
        if before is None:
            del os.environ["DOCKER_HOST"]
        else:
            os.environ["DOCKER_HOST"] = before
        shutil.rmtree(folder, ignore_errors=True)


def _answers() -> bool:
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "version"], capture_output=True, check=False).returncode == 0


def _wait(daemon: subprocess.Popen[bytes], log: Path) -> None:
    try:
        waiting.until(lambda: daemon.poll() is not None or _answers(), "Docker daemon that answers",
                      lambda: waiting.size(log))
        assert daemon.poll() is None
    except AssertionError:
        absent(f"a Docker daemon that starts: {log.read_text(errors='replace')[-300:]}")
