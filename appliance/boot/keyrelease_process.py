"""The key release process: the only one that ever opens a connection outward, and it ends before anything is served.

The boot starts it before hardening takes away the right to start processes, and gives it an empty environment. It
reads its task from standard input, talks to the brokers that the policy pins, and writes keys to standard output. It
knows neither policy nor models; its release keys and every copy of a model key that Python made die with it.
"""

from __future__ import annotations

import hashlib
import json
import resource
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any

from appliance.boot import hardening, keyrelease_jwe
from appliance.boot.keyrelease_https import Address, Connection
from appliance.boot.keyrelease_kbs import Session
from appliance.boot.keyrelease_pipe import EVIDENCE, KEY, NONCE, REFUSAL, TASK, Pipe, PipeError
from appliance.errors import ApplianceError
from appliance.models.disk_random import wipe

MEMORY_BYTES, FILES = 1 << 30, 32
ALARM_SECONDS = 5.0  # beyond the time that is allowed


def _harden(tolerant: bool, seconds: float) -> None:
    """No core dumps, no debugger, no files, no new code; an alarm ends the process soon after its time."""
    hardening.harden(tolerant=tolerant)
    hardening.refuse_new_code(prebuilt=True, tolerant=tolerant)
    for limit, value in ((resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_NOFILE, FILES),
                         (resource.RLIMIT_AS, MEMORY_BYTES)):
        resource.setrlimit(limit, (value, value))
    signal.setitimer(signal.ITIMER_REAL, seconds + ALARM_SECONDS)


def _ask(pipe: Pipe, broker: Mapping[str, Any], platform: str, deadline: float) -> None:
    """One handshake; each key goes through the pipe in the order of the names and is wiped here."""
    connection = Connection(Address.of(broker["url"], broker["root_sha256"]), deadline)
    try:
        session = Session(connection, platform)
        nonce = session.challenge()
        pipe.send(NONCE, hashlib.sha256(keyrelease_jwe.spki(session.release_key)).digest() + nonce)
        _, evidence = pipe.receive(EVIDENCE)
        session.attest(evidence)
        for name in broker["resources"]:
            key = session.resource(name)
            try:
                pipe.send(KEY, key)
            finally:
                wipe(key)
    finally:
        connection.close()


def main() -> int:
    """Do the one task on standard input; 0 when every key was handed over."""
    pipe = Pipe(0, 1)
    try:
        _, text = pipe.receive(TASK)
        task = json.loads(text)
        _harden(task["tolerant"], task["seconds"])
        deadline = time.monotonic() + task["seconds"]
        for broker in task["brokers"]:
            _ask(pipe, broker, task["platform"], deadline)
    except ApplianceError as error:
        pipe.send(REFUSAL, json.dumps({"code": error.code, "summary": error.summary[:2048],
                                       "hint": (error.hint or "")[:1024]}).encode())
        return 1
    except PipeError:
        return 2  # the boot is gone: nobody is left to tell
    return 0


if __name__ == "__main__":
    sys.exit(main())
