"""All that was looked at, what this machine can do by it, and the next command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from appliance.doctor import deployment, hardware, machine, programs
from appliance.doctor.line import TASKS, Line
from appliance.policy.explaining.checking import check_file


@dataclass(frozen=True, slots=True)
class Examination:
    """The lines; `needed`: the tasks that a policy needs here, or all."""

    lines: tuple[Line, ...]
    needed: tuple[str, ...]

    @property
    def obstacles(self) -> dict[str, tuple[str, ...]]:
        """Return the names of missing things, by task."""
        return {task: tuple(each.name for each in self.lines if each.state == "no" and task in each.tasks)
                for task in TASKS}

    @property
    def lacking(self) -> tuple[Line, ...]:
        """Return the lines that stop a needed task."""
        return tuple(each for each in self.lines if each.state == "no" and (
            not each.tasks or set(each.tasks) & set(self.needed)))

    @property
    def commands(self) -> tuple[str, ...]:
        """Return the commands that help; the first one installs all packages."""
        packages = [name for each in self.lacking for name in each.packages]
        others = [each.fix for each in self.lacking if not each.packages and each.fix]
        return tuple(dict.fromkeys([*([programs.install(packages)] if packages else []), *others]))


def examine(policy: Path | None = None, folders: Sequence[Path] = (), root: Path = Path("/")) -> Examination:
    """Look at this machine, and at a policy on it. Raises PolicyError if that cannot be read."""
    found = [*machine.lines(root), *hardware.lines(root), *programs.lines()]
    if policy is None:
        return Examination(tuple(found), TASKS)
    found += deployment.lines(policy, folders, root)
    return Examination(tuple(found), deployment.needed_tasks(check_file(policy).policy, root))
