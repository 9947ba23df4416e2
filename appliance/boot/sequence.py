"""The boot, in order. Read this first.

    policy       what this version and this machine cannot keep stops the boot; the audit log opens
    hardening    what the process does to itself
    self-test    known answers for cryptography, random source and kernels
    key-release  keys of sealed models from the broker
    models       read, checked against their pins, loaded
    attestation  policy, models and self-test are bound
    service      listeners open

Each step is named, timed and recorded. The first that fails ends the boot with one diagnostic, and nothing is served.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from appliance import __version__
from appliance.attestation.attestor import Attestor, State
from appliance.attestation.evidence import SIMULATED, SimulatedProvider
from appliance.audit.log import AuditLog, open_sink
from appliance.audit.stdlib import Silence, place
from appliance.boot import checks, hardening, identity, models, selftest
from appliance.boot.booted import Booted
from appliance.boot.report import BootReport, Note, Progress, Step, quiet
from appliance.engine.kernels import table as kernels
from appliance.errors import ApplianceError, AuditError, BootError
from appliance.policy import Loaded


def boot(loaded: Loaded, *, start_service: Callable[[Booted], int], operator: checks.Operator | None = None,
         model_folders: tuple[Path, ...] = (), progress: Progress = quiet) -> int:
    """Boot by a checked policy and serve until the service ends; returns its exit code. Raises BootError."""
    booted = prepare(loaded, operator=operator, model_folders=model_folders, progress=progress)
    with contextlib.closing(booted):
        return start_service(booted)  # calls booted.ready() once it listens


def prepare(loaded: Loaded, *, operator: checks.Operator | None = None, model_folders: tuple[Path, ...] = (),
            progress: Progress = quiet) -> Booted:
    """Everything up to the service. Raises BootError, which names the step, what was expected and what was found."""
    policy, operator, begun = loaded.policy, operator or checks.Operator(), time.monotonic_ns()
    tolerant = policy.simulated
    try:
        audit = AuditLog(open_sink(operator.log_sink))
    except AuditError as error:
        raise _failure("policy", error) from None
    silence, steps = Silence(audit).install(), _Steps(audit, BootReport(), progress)
    try:
        with steps.step("policy") as note:
            files = checks.find_models(policy, [loaded.path.parent, *model_folders])
            checks.check(policy, operator, files)
            identity.name_things(audit, policy)
            audit.write("boot.start", version=__version__, platform=SIMULATED, policy_sha384=loaded.digest.hex())
            note.detail = loaded.digest.hex()

        with steps.step("hardening") as note:
            table = kernels.load()
            measures = (*hardening.harden(tolerant=tolerant),
                        hardening.refuse_new_code(prebuilt=table.origin == "ahead", tolerant=tolerant))
            note.tolerate(measure.name for measure in measures if measure.outcome != "done")

        with steps.step("self-test") as note:
            # Kernels that are compiled on first use are tested as far as the models need them; a library, wholly.
            formats = None if table.origin == "ahead" else models.formats_named_by(list(files.values()))
            tested = selftest.run(table, formats=formats, progress=steps.counter("answers"))
            note.detail = selftest.require(tested)

        with steps.step("key-release") as note:
            note.skip("no model is sealed")

        running = {}
        with steps.step("models") as note:
            for model in policy.models:
                running[model.name] = models.load(
                    model, policy.limits, files[model.name], formats, steps.counter("bytes"))
                audit.write("boot.model", model=model.name, sha256=running[model.name].source.sha256.hex())
            note.detail = ", ".join(running)

        with steps.step("attestation") as note:
            provider = SimulatedProvider(loaded.host_data)
            attestor = Attestor(provider, State(loaded.digest, tested.digest, identity.build(table)))
            generation = attestor.new_generation(model.bound() for model in running.values())
            note.detail = f"{provider.platform}, generation {generation}"

        listening = time.monotonic_ns()

        def ready() -> None:
            steps.done("service", "passed", listening)
            audit.seal()
            audit.write("boot.ready", duration_us=(time.monotonic_ns() - begun) // 1000, generation=generation,
                        self_test_sha384=tested.digest.hex(), models=len(running))

        return Booted(policy, loaded.digest, operator, running, attestor, audit, silence, tested, measures,
                      steps.report, ready)
    except BaseException:
        audit.close()
        silence.restore()
        raise


class _Steps:
    """Names, times and records the steps."""

    def __init__(self, audit: AuditLog, report: BootReport, progress: Progress) -> None:
        self.audit, self.report, self._progress = audit, report, progress
        self._name = ""

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[Note]:
        """Run one step; whatever goes wrong in it becomes one BootError."""
        self._name, note, begun = name, Note(), time.monotonic_ns()
        self._progress(name, 0, 0, "")
        try:
            yield note
        except Exception as error:  # noqa: BLE001 - fail closed, whatever it was
            failure = _failure(name, error)
            self.audit.admit_codes([failure.code])
            self.done(name, "failed", begun, failure.summary, failure.code)
            self.audit.write("boot.failed", step=name, code=failure.code)
            raise failure from None
        self.done(name, note.verdict, begun, note.detail)

    def done(self, name: str, verdict: str, begun: int, detail: str = "", code: str | None = None) -> None:
        """Record a step's end."""
        took = (time.monotonic_ns() - begun) // 1000
        self.report.steps.append(Step(name, verdict, took, detail))  # type: ignore[arg-type]
        self.audit.write("boot.step", step=name, verdict=verdict, duration_us=took, code=code)

    def counter(self, unit: str) -> Callable[[int, int], None]:
        """A progress callback for the present step."""
        return lambda done, total: self._progress(self._name, done, total, unit)


def _failure(step: str, error: Exception) -> BootError:
    """One diagnostic: the step, then what was expected and found."""
    if isinstance(error, ApplianceError):
        return BootError(f"boot stopped at step {step}: {error.summary}", hint=error.hint, code=error.code)
    spot = place(error.__traceback__) or "a library"
    return BootError(f"boot stopped at step {step}: {type(error).__name__} at {spot}", code="boot-internal",
                     hint="this is a defect of the appliance, or the machine is out of memory or disk")
