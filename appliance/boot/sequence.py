"""The boot, in order. Read this first.

    policy       what this version and this machine cannot keep stops the boot; the audit log opens; what was launched
                 must name this policy
    hardening    what the process gives up, and the sandbox that it enters
    self-test    known answers for cryptography, random source and kernels
    key-release  keys of sealed models, from where the policy says; whatever went out to a broker has ended
    state        the sealed disk opens, its epoch goes up by one; the audit log moves there if the policy says so
    models       read, checked against their pins, loaded
    attestation  policy, models and self-test are bound
    service      listeners open, and the sandbox is closed behind them

Each step is named, timed and recorded. The first that fails ends the boot with one diagnostic, and nothing is served.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from appliance import __version__, isolated
from appliance.attestation.collect import collect
from appliance.attestation.collect.attestor import Attestor, State
from appliance.attestation.collect.release import ReleaseAttestor
from appliance.audit.log import AuditLog, open_sink
from appliance.audit.stdlib import Silence
from appliance.boot import checks, identity, sandbox
from appliance.boot.booted import Booted, undo
from appliance.boot.keys import policy_keys as modelkeys
from appliance.boot.keys.providers import Secret
from appliance.boot.keys.release import release as keyrelease
from appliance.boot.placement.bind import bind
from appliance.boot.planning import budget
from appliance.boot.report import Progress, begun_report, quiet
from appliance.boot.running import load as models
from appliance.boot.sandbox import hardening
from appliance.boot.selftest import run as selftest
from appliance.boot.state.audit_sink import StateSink, open_disk
from appliance.boot.steps import Steps, diagnostic
from appliance.errors import AuditError
from appliance.policy import Loaded
from appliance.secure import interrupts
from appliance.signed import approvals
from appliance.signed.tenants import tenants_of


def boot(loaded: Loaded, *, start_service: Callable[[Booted], int], operator: checks.Operator | None = None,
         model_folders: tuple[Path, ...] = (), progress: Progress = quiet,
         places: collect.Places = collect.MACHINE) -> int:
    """Boot by a checked policy and serve until the service ends; returns its exit code. Raises BootError.

    `places` other than the machine's own interfaces are for tests: nothing outside of this process can set them.
    """
    with contextlib.ExitStack() as closing:
        booted = prepare(loaded, closing, operator=operator, model_folders=model_folders, progress=progress,
                         places=places)
        try:
            return start_service(booted)  # calls booted.ready() once it listens
        except Exception as error:
            if booted.listening:
                raise
            raise booted.refuse(error) from None


def prepare(loaded: Loaded, closing: contextlib.ExitStack, *, operator: checks.Operator | None = None,
            model_folders: tuple[Path, ...] = (), progress: Progress = quiet,
            places: collect.Places = collect.MACHINE) -> Booted:
    """Everything up to the service, which `closing` closes. Raises BootError, which names the step, what was expected
    and what was found."""
    policy, operator, begun = loaded.policy, operator or checks.Operator(), time.monotonic_ns()
    tolerant = policy.simulated
    try:
        granted = "log_sink" in policy.service.operator_may_set
        sink = StateSink() if policy.audit.sink == "state" else None
        audit = AuditLog(sink or open_sink(operator.log_sink if granted else None))
    except AuditError as error:
        raise diagnostic("policy", error) from None
    silence, steps = Silence(audit).install(), Steps(audit, begun_report(), progress)
    running: dict[str, models.RunningModel] = {}
    fetcher = keyrelease.KeyRelease(modelkeys.wanted(policy), tpm=places.tpm)
    keys: dict[str, Secret] = {}  # each is wiped when its model was read
    disk = state_key = provider = booted = None
    try:
        with steps.step("policy") as note:
            files = checks.find_models(policy, [loaded.path.parent, *model_folders])
            checks.check(loaded, operator, files)
            budget.allow_files(policy.limits)
            tenants = tenants_of(policy, [loaded.path.parent, *model_folders])
            identity.name_things(audit, policy, tenants.tenants)
            provider = collect.provider(policy.tee.platforms, loaded.host_data, places)  # its devices stay open
            bound = bind(loaded, provider, root=places.intel_root)
            audit.write("boot.start", version=__version__, platform=provider.platform,
                        policy_sha384=loaded.digest.hex())
            approved = approvals.require(policy, loaded.digest, approvals.beside(loaded.path).name,
                                         [loaded.path.parent, *model_folders])
            fetcher.start(modelkeys.opened(files))  # hardening takes away the right to do so, and to connect
            note.detail = ", ".join((loaded.digest.hex(), bound, *(f"approved by {name}" for name in approved.valid)))

        with steps.step("hardening") as note:
            table = models.native_code()
            prebuilt = table.origin == "ahead"
            measures = hardening.harden(tolerant=tolerant)
            box = sandbox.enter(loaded, prebuilt=prebuilt, tolerant=tolerant, models=files.values(),
                                port=operator.listen_port, child=fetcher.pid, traced=hardening.traced(measures))
            box.measures[:0] = [*measures, hardening.refuse_new_code(prebuilt=prebuilt, tolerant=tolerant)]
            note.tolerate(measure.name for measure in box.measures if measure.outcome != "done")

        with steps.step("self-test") as note, selftest.crashes_told():
            if not prebuilt:
                steps.say(f"kernels are {table.source}")
            # Kernels that are compiled on first use are tested as far as the models need them; a library, wholly.
            formats = None if table.origin == "ahead" else models.formats_named_by(list(files.values()))
            tested = selftest.run(table, formats=formats, need_cpu_random=not tolerant,
                                  progress=steps.counter("answers"))
            note.detail = f"{selftest.require(tested)}; kernels: {table.source}"

        with steps.step("key-release") as note:
            build = identity.build(table)
            asker = ReleaseAttestor(provider, loaded.digest, tested.digest, build)
            released = fetcher.keys(asker, tolerant=tolerant)
            keys = modelkeys.release(policy.models, released)
            state_key = modelkeys.state_key(policy, released)
            isolated.forget()
            note.tell(", ".join([*keys, *(["state"] if state_key else [])]), "nothing is sealed")
            box.tighten("load")

        with steps.step("state") as note:
            disk = open_disk(policy, state_key, sink, audit)
            note.tell(f"epoch {disk.epoch}, disk {disk.disk.hex()}" if disk else "", "nothing is written")

        with steps.step("models") as note:
            division = budget.fitting(policy, files, compiles=not prebuilt)
            for model in models.drafts_first(policy.models):
                running[model.name] = models.load(
                    model, policy.limits, files[model.name], formats, steps.counter("bytes"), key=keys.get(model.name),
                    kernels=table, draft=running.get(model.draft_model or ""), share=division.shares[model.name],
                    plaintext_budget=models.plaintext_left(policy, running), users=models.users(policy, model))
                audit.write("boot.model", model=model.name, sha256=running[model.name].source.sha256.hex())
            note.detail = models.described(running, division.reasons, tolerant=tolerant)

        with steps.step("attestation") as note:
            attestor = Attestor(provider, State(loaded.digest, tested.digest, build))
            generation = attestor.new_generation(model.bound() for model in running.values())
            note.detail = f"{collect.described(provider.platform)}, generation {generation}"

        with interrupts.later():  # who asks the process to end finds it closed by one of the two
            booted = Booted(policy, division, loaded.digest, operator, tenants, running, attestor, audit, silence,
                            tested, box, disk, steps.report, steps.service(begun, tested, generation, len(running)),
                            kernels=table)
            closing.callback(booted.close)
        return booted
    except BaseException:
        if booted is None:
            undo(fetcher, keys, running, provider, audit, disk, state_key, silence)
        raise
