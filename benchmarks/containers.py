"""The service in a container, through testcontainers. The image is empty; the root file system is
this machine's own, read-only: `/usr` and what belongs to it, this folder with its virtual
environment, and the folder of the models.
"""

from __future__ import annotations

import io
import os
import sys
import tarfile
from pathlib import Path

import docker
from docker.types import Ulimit

from benchmarks.cgroups import Group
from benchmarks.memory import ROOT, Case, Served, command

os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")  # no second container from a registry
from testcontainers.core.container import DockerContainer

_IMAGE = "appliance-benchmark-empty:latest"
_LOCKED = 8 << 20  # bytes that may be locked: as a login has, on Debian
_SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc")


def _image() -> str:
    """An image with empty folders to mount at, made where it is missing."""
    client = docker.from_env()
    try:
        client.images.get(_IMAGE)
    except docker.errors.ImageNotFound:
        with io.BytesIO() as file:
            with tarfile.open(fileobj=file, mode="w") as archive:
                for name in (*_SYSTEM, "/proc", "/sys", "/dev"):
                    folder = tarfile.TarInfo(name.lstrip("/"))
                    folder.type, folder.mode = tarfile.DIRTYPE, 0o755
                    archive.addfile(folder)
            name, _, tag = _IMAGE.partition(":")
            client.api.import_image_from_data(file.getvalue(), repository=name, tag=tag)
    return _IMAGE


class Contained(Served):
    """The service in a container whose memory is limited."""

    def _start(self, case: Case, limit: int | None) -> None:
        more = {} if limit is None else {"mem_limit": limit, "memswap_limit": limit}
        container = DockerContainer(_image()).with_command(command(case, self.folder)).with_kwargs(
            network_mode="none", read_only=True, working_dir=str(ROOT), cap_drop=["ALL"],
            ulimits=[Ulimit(name="memlock", soft=_LOCKED, hard=_LOCKED)], **more)
        container = container.with_env("PYTHONDONTWRITEBYTECODE", "1")
        for path in {*_SYSTEM, sys.prefix, sys.base_prefix, str(ROOT), str(case.file.parent.resolve()), *_links()}:
            container = container.with_volume_mapping(path, path, "ro")
        if case.key is not None:
            container = container.with_volume_mapping(str(case.key.resolve()), str(case.key.resolve()), "ro")
        self._container = container.with_volume_mapping(str(self.folder), str(self.folder), "rw").start()
        wrapped = self._container.get_wrapped_container()
        wrapped.reload()
        self.pid = int(wrapped.attrs["State"]["Pid"])
        lines = Path(f"/proc/{self.pid}/cgroup").read_text().splitlines()
        groups = {line.split(":", 2)[1]: line.split(":", 2)[2] for line in lines}
        self.group = Group(groups.get("memory", groups.get("", "")).lstrip("/"), None, made=True)

    def running(self) -> bool:
        """Whether it has not ended."""
        wrapped = self._container.get_wrapped_container()
        wrapped.reload()
        return bool(wrapped.status == "running")

    def said(self) -> str:
        """The text that it wrote."""
        return b"".join(self._container.get_logs()).decode(errors="replace")

    def _end(self) -> None:
        self._container.get_wrapped_container().stop(timeout=60)
        self._container.stop()


def _links() -> set[str]:
    """Folders outside of this one that its virtual environment and build point to."""
    build = ROOT / "build"
    return {str(path.resolve()) for path in (build.iterdir() if build.is_dir() else ()) if path.is_symlink()}
