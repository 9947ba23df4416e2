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

Each step is named, timed and recorded. The first that fails ends the boot with one diagnostic, and
nothing is served.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from appliance.attestation.collector import MACHINE, Interfaces
from appliance.boot import checks, stages
from appliance.boot.auditing import open_log
from appliance.boot.booted import Booted
from appliance.boot.report import Progress, begun_report, quiet
from appliance.boot.stdlib import Silence
from appliance.boot.steps import Steps, diagnostic
from appliance.boot.under_way import UnderWay
from appliance.errors import AuditError
from appliance.keys import policy_keys
from appliance.keys.release.release import KeyRelease
from appliance.policy import Loaded
from appliance.secure import interrupts


def boot(loaded: Loaded, *, start_service: Callable[[Booted], int], operator: checks.Operator | None = None,
         model_folders: tuple[Path, ...] = (), progress: Progress = quiet,
         places: Interfaces = MACHINE) -> int:
    """Boot by a checked policy and serve until the service ends; returns its exit code. Raises
    BootError.

    `places` other than the machine's own interfaces are for tests: nothing outside of this process
    can set them.
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
            places: Interfaces = MACHINE) -> Booted:
    """Everything up to the service, which `closing` closes. Raises BootError, which names the step,
    what was expected and what was found."""
    begun, operator = time.monotonic_ns(), operator or checks.Operator()
    way = _begin(loaded, operator, (loaded.path.parent, *model_folders), progress, places)
    booted = None
    try:
        stages.policy(way)
        stages.hardening(way)
        stages.self_test(way)
        stages.key_release(way)
        stages.state(way)
        stages.models(way)
        stages.attestation(way)
        with interrupts.later():  # who asks the process to end finds it closed by one of the two
            booted = _booted(way, begun)
            closing.callback(booted.close)
        return booted
    except BaseException:
        if booted is None:
            way.close()
        raise


def _begin(loaded: Loaded, operator: checks.Operator, folders: tuple[Path, ...], progress: Progress,
           places: Interfaces) -> UnderWay:
    policy = loaded.policy
    try:
        audit, sink = open_log(policy, operator)
    except AuditError as error:
        raise diagnostic("policy", error) from None
    return UnderWay(loaded, operator, folders, places, audit, sink, Silence(audit).install(),
                    Steps(audit, begun_report(), progress), KeyRelease(policy_keys.keys_of(policy), tpm=places.tpm))


def _booted(way: UnderWay, begun: int) -> Booted:
    end = way.steps.service(begun, way.tested, way.generation, len(way.running))
    return Booted(way.policy, way.division, way.loaded.digest, way.operator, way.tenants, way.running, way.attestor,
                  way.audit, way.silence, way.tested, way.box, way.disk, way.steps.report, way.sessions, way.declared,
                  end, kernels=way.table)
