"""The trial of a machine: build, boot, verify, attack, seal.

The machine that is accepted serves from the first verification to the seal. An attack that boots
something else boots it beside that, with copies of its TPM and state disk.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance import __version__
from appliance.acceptance import bundle, machine, materials, sight
from appliance.acceptance.attacks import ATTACKS, CPUS, Attack, Scene
from appliance.acceptance.bundle import Manifest, Trial
from appliance.acceptance.judge import GOOD, is_good, words_of
from appliance.acceptance.machine import AcceptanceError, Launch, Machine
from appliance.acceptance.materials import Given
from appliance.acceptance.sight import Sight
from appliance.attestation.trust.roots import VENDORS, Roots
from appliance.client import Verdict, Verifier
from appliance.client.verdict import EXIT_CODES
from appliance.errors import AttestationError
from appliance.imaging.recipe import manifest as image_manifest

_CPU = Path("/proc/cpuinfo")
_SILENT = "nothing came up"


@dataclass(frozen=True)
class Plan:
    """The plan of a trial. `command` boots an image; `seconds`: how long a machine may take."""

    given: Given
    boot: tuple[str, ...] = ()
    command: tuple[str, ...] = machine.BOOT
    build: tuple[str, ...] | None = None
    predict: tuple[str, ...] | None = None
    attacks: tuple[str, ...] = tuple(ATTACKS)
    seconds: float = 900
    roots: Roots = VENDORS
    tell: Callable[[str], None] = print
    key: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)


@dataclass
class _Run:
    """A trial under way: what goes into the bundle."""

    plan: Plan
    verifier: Verifier
    files: dict[str, bytes]
    trials: dict[str, Trial] = field(default_factory=dict)

    @property
    def scheme(self) -> str:
        """Return that of the machine's URL."""
        listeners = self.verifier.reference.policy.policy.service.listeners
        return "http" if listeners[0].kind == "tcp" else "https"


def build(plan: Plan) -> dict[str, bytes]:
    """Build and predict, where the plan says so; return what the commands printed. Raises
    AcceptanceError."""
    given, logs = plan.given, dict[str, bytes]()
    if plan.build is not None:
        plan.tell("build")
        logs["logs/build.txt"] = _run("image", "build", str(given.policy), "-o", str(given.image), *plan.build)
    if plan.predict is not None:
        plan.tell("predict")
        logs["logs/predict.txt"] = _run("image", "predict", str(given.image), *plan.predict)
    return logs


def accept(plan: Plan) -> bytes:
    """Try a machine, and return the bundle. Raises AcceptanceError if the machine does not come up
    or is not verified; then there is nothing to accept."""
    logs = build(plan)
    image_manifest.read(plan.given.image)
    files = materials.gather(plan.given) | logs
    run = _Run(plan, materials.verifier(files, plan.given.terms(), plan.roots), files)
    launch = Launch(plan.given.image, plan.boot)
    plan.tell("boot")
    with machine.boot(launch, plan.command, run.scheme) as booted:
        if not booted.ready(plan.seconds):
            raise _not_up(booted, plan.seconds)
        scene = _verified(run, booted)
        for name in plan.attacks:
            run.trials[name] = _try(run, name, scene, launch)
            plan.tell(f"  {name}: {ATTACKS[name].what}: {run.trials[name].ended}, {run.trials[name].by}")
        run.files[f"{GOOD}/console.txt"] = booted.console
        return _sealed(run, booted)


def _verified(run: _Run, booted: Machine) -> Scene:
    """Ask the machine twice, and judge the first answer."""
    first, second = sight.ask(booted.url), sight.ask(booted.url)
    verdict = first.verdict(run.verifier)
    run.plan.tell(f"verify: {verdict.status}" + (f" [{verdict.code}]" if verdict.code else ""))
    if not is_good(verdict):
        raise UnverifiedError(first, verdict)
    run.files |= first.members(GOOD)
    return Scene(first, second, run.verifier.reference.policy)


class UnverifiedError(AcceptanceError):
    """The machine's verdict is not good. `sight` is what it was made of."""

    def __init__(self, seen: Sight, verdict: Verdict) -> None:
        super().__init__(f"{verdict.target}: {verdict.status}: {verdict.reason}", code="acceptance-verdict",
                         hint=verdict.hint or f"exit code {EXIT_CODES[verdict.status]} of appliance verify says more")
        self.sight = seen


def _try(run: _Run, name: str, scene: Scene, launch: Launch) -> Trial:
    """Try one attack."""
    attack, verdict = ATTACKS[name], scene.first.verdict(run.verifier)
    if reason := _beside_the_point(attack, run, scene, verdict.platform or ""):
        return Trial(ended="not tried", by=reason)
    if attack.show is not None:
        return _judged(run, name, attack.show(scene))
    with tempfile.TemporaryDirectory(prefix="appliance-accept-") as scratch:
        folder = Path(scratch)
        changed = attack.boot(launch.beside(folder), folder) if attack.boot is not None else launch
        with machine.boot(changed, run.plan.command, run.scheme) as booted:
            return _looked(run, name, booted)


def _looked(run: _Run, name: str, booted: Machine) -> Trial:
    """Judge what an attacked machine shows, if it shows something."""
    seen = None
    if booted.ready(run.plan.seconds):
        try:
            seen = sight.ask(booted.url)
        except AttestationError as error:
            run.plan.tell(f"    {error.summary}")
    run.files[f"attacks/{name}/console.txt"] = booted.console
    return Trial(ended="silent", by=_SILENT) if seen is None else _judged(run, name, seen)


def _judged(run: _Run, name: str, seen: Sight) -> Trial:
    run.files |= seen.members(f"attacks/{name}")
    verdict = seen.verdict(run.verifier)
    by = words_of(verdict) & ATTACKS[name].refusals
    if is_good(verdict) or not by:
        return Trial(ended="accepted", by=(verdict.code or verdict.status)[:256])
    return Trial(ended="refused", by=", ".join(sorted(by)))


def _beside_the_point(attack: Attack, run: _Run, scene: Scene, platform: str) -> str:
    """Return why an attack cannot be tried here; empty where it can."""
    if attack.own and run.plan.command != machine.BOOT and platform in attack.platforms:
        return "the machine is booted by a command of its owner"
    known = run.verifier.reference.known
    if attack.shapes and known is not None and known.measurements.allows(CPUS):
        return f"the image's reference allows {CPUS} processors"
    return attack.beside_the_point(run.verifier.reference.policy.policy, scene.first, platform)


def _sealed(run: _Run, booted: Machine) -> bytes:
    """Ask the machine with the manifest's digest as nonce, and return the bundle."""
    plan, public = run.plan, run.plan.key.public_key().public_bytes_raw()
    manifest = Manifest(
        version=__version__, machine=_machine(), signer=public.hex(), terms=plan.given.terms(),
        attacks=dict(sorted(run.trials.items())),
        files={name: bundle.file_of(content) for name, content in sorted(run.files.items())})
    seal = sight.ask(booted.url, bundle.nonce(manifest.encode()))
    verdict = seal.verdict(run.verifier)
    plan.tell(f"seal: {verdict.status}")
    if not is_good(verdict):
        raise UnverifiedError(seal, verdict)
    return bundle.pack(manifest, run.files, seal, plan.key)


def _run(*words: str) -> bytes:
    """Run a command of this program; return what it printed. Raises AcceptanceError if it fails."""
    done = subprocess.run([sys.executable, "-m", "appliance", *words], stdin=subprocess.DEVNULL, check=False,  # noqa: S603
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        said = done.stdout[-400:].decode(errors="replace").strip()
        raise AcceptanceError(f"appliance {' '.join(words[:2])} ended with {done.returncode}: {said}",
                              code="acceptance-command", hint="its own words say why")
    return done.stdout[-machine.MAX_CONSOLE:]


def _not_up(booted: Machine, seconds: float) -> AcceptanceError:
    said = booted.console[-400:].decode(errors="replace").strip()
    return AcceptanceError(f"the machine does not serve after {seconds:.0f} s, or ended; it said last: {said}",
                           code="acceptance-boot", hint="boot it by itself first: appliance image boot")


def _machine() -> str:
    """Return the processor's name, as this machine's kernel has it."""
    try:
        lines = _CPU.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        lines = []
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return "".join(each for each in name if " " <= each <= "~")[:200] or "unknown"


def names(wanted: Sequence[str]) -> tuple[str, ...]:
    """Return the attacks of these names in the table's order; all for none."""
    return tuple(name for name in ATTACKS if not wanted or name in wanted)

