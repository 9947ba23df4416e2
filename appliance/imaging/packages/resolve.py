"""Choose Debian packages: the newest of each name, with all that it depends on but what is left
out."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable

from appliance.errors import ImageError
from appliance.imaging.packages.debian import Candidate
from appliance.imaging.recipe.recipe import Role


def newest(candidates: Iterable[Candidate]) -> dict[str, Candidate]:
    """Of each name the highest version, as dpkg orders them."""
    best: dict[str, Candidate] = {}
    for candidate in candidates:
        known = best.get(candidate.name)
        if known is None or _newer(candidate.version, known.version):
            best[candidate.name] = candidate
    return best


def _newer(left: str, right: str) -> bool:
    return subprocess.run(["dpkg", "--compare-versions", left, "gt", right], check=False).returncode == 0  # noqa: S603, S607


def closure(role: Role, packages: dict[str, Candidate]) -> list[Candidate]:
    """Return a role's packages and their dependencies; of alternatives, the first that is there.
    Raises ImageError, which names a gap."""
    providers: dict[str, str] = {}
    for name in sorted(packages):
        for virtual in packages[name].provides:
            providers.setdefault(virtual, name)
    chosen: dict[str, Candidate] = {}
    waiting = list(role.packages)
    while waiting:
        name = waiting.pop(0)
        if name in chosen or name in role.leave_out:
            continue
        if name not in packages:
            raise ImageError(f"package {name} is in no index", hint="correct image/packages.toml")
        chosen[name] = packages[name]
        for options in packages[name].needs:
            waiting += _one_of(options, packages, providers, {*chosen, *role.leave_out})
    return [chosen[name] for name in sorted(chosen)]


def _one_of(options: tuple[str, ...], packages: dict[str, Candidate], providers: dict[str, str],
            satisfied: set[str]) -> list[str]:
    if satisfied & set(options):
        return []
    for option in options:
        if option in packages:
            return [option]
        if option in providers:
            return [] if providers[option] in satisfied else [providers[option]]
    raise ImageError(f"nothing provides {' | '.join(options)}", hint="correct image/packages.toml")
