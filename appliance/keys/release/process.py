"""The key release process: the only one that ever opens a connection outward, and it ends before
anything is served.

The boot starts it before hardening takes away the right to start processes, and gives it an empty
environment. It reads its task from standard input, talks to the brokers that the policy pins, and
writes keys to standard output. Before the boot's self-test, which takes long on some machines, it
may be told to ask each broker for a challenge: one that cannot be trusted stops the boot then. It
knows neither policy nor models; its release keys and every copy of a model key that Python made die
with it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
import resource
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import appliance
from appliance.attestation.tpm.chip import seal
from appliance.attestation.tpm.chip.client import Tpm
from appliance.attestation.tpm.chip.device import read_pcrs
from appliance.codec import jwe
from appliance.errors import ApplianceError, AttestationError, ModelKeyError
from appliance.keys import document
from appliance.keys.release.https import CONNECT_SECONDS, Connection, Destination
from appliance.keys.release.kbs import TEES, Handshake
from appliance.keys.release.pipe import (
    ANSWER,
    EVIDENCE,
    KEY,
    NONCE,
    REACH,
    REACHED,
    REFUSAL,
    SEALED,
    TASK,
    Pipe,
    PipeError,
)
from appliance.platforms import IMAGE_PCRS
from appliance.sandbox import capabilities, hardening, landlock
from appliance.sandbox.measure import take
from appliance.sandbox.syscalls import MACHINES
from appliance.secure.locked import SecretBytes, fill_randomly
from appliance.secure.wipe import wipe

MEMORY_BYTES, FILES = 1 << 30, 32
READABLE = ("/usr", "/lib", "/lib64", "/etc", "/dev/urandom")  # libraries, and where names are looked up
DNS_PORT = 53
ALARM_SECONDS = 5.0  # beyond the time that is allowed


def _harden(task: Mapping[str, Any]) -> None:
    """No core dumps, no debugger, no files, no new code, no capability; an alarm ends the process
    soon after its time.

    With Landlock it can connect to the brokers' ports alone, and open nothing but libraries and
    settings.
    """
    tolerant = task["tolerant"]
    hardening.harden(tolerant=tolerant)
    hardening.refuse_new_code(prebuilt=True, tolerant=tolerant)
    for limit, value in ((resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_NOFILE, FILES),
                         (resource.RLIMIT_AS, MEMORY_BYTES)):
        resource.setrlimit(limit, (value, value))
    _bound(task)
    take("key-release-capabilities", _no_capabilities, tolerant)  # reads /proc, which is closed afterwards
    take("key-release-landlock", lambda: _confine(task, tolerant=tolerant), tolerant)


def _bound(task: Mapping[str, Any]) -> None:
    """End the process soon after the time of its task."""
    signal.setitimer(signal.ITIMER_REAL, max(0.0, task["until"] - time.monotonic()) + ALARM_SECONDS)


def _confine(task: Mapping[str, Any], *, tolerant: bool) -> None:
    version = landlock.version()
    if version < (1 if tolerant else landlock.NETWORK):
        raise OSError(0, f"Landlock {version or 'is absent'}, needed {landlock.NETWORK}")
    ports = frozenset(Destination.of(broker["url"], broker["root_sha256"]).port for broker in task["brokers"])
    program = {sys.prefix, sys.base_prefix, str(Path(appliance.__file__).parent)}
    grants = [landlock.PathRights(Path(folder)) for folder in (*READABLE, *sorted(program))]
    grants.append(landlock.PathRights(Path(task["tpm"]), landlock.READ_FILE | landlock.WRITE_FILE))
    landlock.restrict(tuple(grants), landlock.Ports(connect=ports | {DNS_PORT}),
                      landlock.ABSTRACT_SOCKETS | landlock.SIGNALS, version)


def _no_capabilities() -> None:
    machine = MACHINES.get(platform.machine())
    left = "no table of system calls" if machine is None else capabilities.drop(machine)
    if left:
        raise OSError(0, left)


def _reach(pipe: Pipe, task: Mapping[str, Any]) -> None:
    """Ask each broker for a challenge that nobody takes. One that cannot be trusted ends it; what
    else is wrong with one is told, since it may pass."""
    unready = []
    for broker in task["brokers"]:
        address = Destination.of(broker["url"], broker["root_sha256"])
        connection = Connection(address, time.monotonic() + CONNECT_SECONDS, patient=False)
        try:
            Handshake(connection, TEES[task["platform"]]).challenge()
        except ModelKeyError as error:
            if error.code == "key-broker-untrusted":
                raise
            unready.append(error.summary)
        finally:
            connection.close()
    signal.setitimer(signal.ITIMER_REAL, 0)
    pipe.send(REACHED, json.dumps(unready).encode())


def _ask(pipe: Pipe, broker: Mapping[str, Any], task: Mapping[str, Any], deadline: float) -> None:
    """One handshake; each key goes through the pipe in the order of the names and is wiped here."""
    connection = Connection(Destination.of(broker["url"], broker["root_sha256"]), deadline)
    try:
        session = Handshake(connection, TEES[task["platform"]], task["endorsement"])
        nonce = session.challenge()
        digest = hashlib.sha256(jwe.spki(session.release_key)).digest()
        here = connection.identity(nonce) if broker["session"] else b""
        pipe.send(NONCE, digest + here + bytes((len(nonce),)) + nonce + session.activation)
        _, evidence = pipe.receive(EVIDENCE)
        session.attest(evidence, pipe.receive(ANSWER)[1] if session.activation else b"")
        for name in broker["resources"]:
            key = session.resource(name)
            try:
                pipe.send(KEY, key)
            finally:
                wipe(key)
    finally:
        connection.close()


def _unseal(pipe: Pipe, device: Path, sealed: Sequence[Mapping[str, Any]]) -> None:
    """Keys that the TPM gives out for the boot that its registers tell."""
    with contextlib.closing(Tpm(device)) as tpm:
        for each in sealed:
            key = seal.unseal(tpm, bytes.fromhex(each["file"]), each["pcrs"])
            try:
                pipe.send(KEY, key)
            finally:
                wipe(key)


def _own(pipe: Pipe, device: Path, own: Mapping[str, Any]) -> None:
    """Hand over the key of the appliance's own state, out of the TPM; it is made if there is none.
    A frame for each place follows, with the file to write there: empty for a place that stays."""
    files = [bytes.fromhex(each) for each in own["files"]]
    with contextlib.closing(Tpm(device)) as tpm:
        place, key = _opened(tpm, files, own["pcrs"]) if any(files) else (0, _made(own["version"]))
        try:
            fresh = {} if any(files) else {place: _sealed_here(tpm, key, own["pcrs"])}
            successor = {int(number): bytes.fromhex(value) for number, value in own["successor"].items()}
            if successor and successor != read_pcrs(tpm, own["pcrs"]):  # else it is this image
                fresh[1 - place] = seal.seal(tpm, key, successor)
            pipe.send(KEY, key)
        finally:
            wipe(key)
    for each in range(len(files)):
        pipe.send(SEALED, fresh.get(each, b""))


def _opened(tpm: Tpm, files: Sequence[bytes], pcrs: Sequence[int]) -> tuple[int, bytearray]:
    """Return the first sealed key that the TPM gives out now, with its place. AttestationError if
    it gives none; that the registers are others is told before that a file is damaged."""
    refusals = []
    for place, file in enumerate(files):
        if file:
            try:
                return place, seal.unseal(tpm, file, pcrs)
            except AttestationError as error:
                refusals.append(error)
    raise min(refusals, key=lambda error: error.code != "tpm-pcrs")


def _made(version: int) -> bytearray:
    """Make a new key; return its document."""
    key = SecretBytes(document.NBYTES)
    try:
        fill_randomly(key)
        return document.make(key, version)
    finally:
        wipe(key)


def _sealed_here(tpm: Tpm, key: bytearray, pcrs: Sequence[int]) -> bytes:
    """Seal a key to the registers as they are now, and see it come out again, before anything is
    written under it. AttestationError where nothing measured the image: any system would get it."""
    values = read_pcrs(tpm, pcrs)
    telling = sorted(IMAGE_PCRS & values.keys())
    if telling and not any(any(values[number]) for number in telling):
        raise AttestationError(f"TPM: PCR {', '.join(map(str, telling))} are zero: nothing measured this image",
                               code="tpm-unmeasured", hint="boot it by firmware that measures what it starts")
    sealed = seal.seal(tpm, key, values)
    wipe(seal.unseal(tpm, sealed, pcrs))
    return sealed


def main() -> int:
    """Do the one task on standard input; 0 when every key was handed over."""
    pipe = Pipe(0, 1)
    try:
        kind, text = pipe.receive(REACH, TASK)
        task = json.loads(text)
        _harden(task)
        if kind == REACH:
            _reach(pipe, task)
            task = json.loads(pipe.receive(TASK)[1])
            _bound(task)
        if task["sealed"]:
            _unseal(pipe, Path(task["tpm"]), task["sealed"])
        if task["own"] is not None:
            _own(pipe, Path(task["tpm"]), task["own"])
        for broker in task["brokers"]:
            _ask(pipe, broker, task, task["until"])
    except ApplianceError as error:
        pipe.send(REFUSAL, json.dumps({"code": error.code, "summary": error.summary[:2048],
                                       "hint": (error.hint or "")[:1024]}).encode())
        return 1
    except PipeError:
        return 2  # the boot is gone: nobody is left to tell
    return 0


if __name__ == "__main__":
    sys.exit(main())
