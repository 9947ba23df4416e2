"""Keys from brokers: the boot's side of the key release process.

The process faces the network; the boot makes the evidence, holds the policy's versions, and trusts nothing that comes
through the pipe beyond its form. A key goes from the pipe into one bytearray and from there into a `Secret`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

from appliance.attestation.release import ReleaseAttestor
from appliance.boot.keyrelease_pipe import EVIDENCE, KEY, NONCE, REFUSAL, TASK, Pipe, PipeError
from appliance.errors import ModelKeyError
from appliance.models import keydocument
from appliance.models.disk_random import wipe
from appliance.models.keys import Secret
from appliance.policy.schema.keys import Broker, Key

SECONDS = 60.0  # for all brokers of a policy together
_GRACE_SECONDS = 2.0  # so that the process can say itself that time ran out
CODES = ("key-denied", "key-absent", "key-broker-unreachable", "key-broker-untrusted", "key-broker-answer")
_SPKI_BYTES = 32


@dataclass(frozen=True)
class _Wanted:
    """One key: its name in diagnostics, and where it is."""

    name: str
    broker: Broker
    version: int | None


class KeyRelease:
    """The keys of a policy that brokers hold. Start it before hardening, ask it once, close it in any case.

    Nothing is started for a policy that names no broker.
    """

    def __init__(self, keys: Mapping[str, Key], *, seconds: float = SECONDS) -> None:
        """`keys` by name; those of other providers are left out."""
        wanted = [_Wanted(name, key.broker, key.version) for name, key in keys.items() if key.broker is not None]
        self._brokers: dict[tuple[str, str], list[_Wanted]] = {}
        for each in wanted:
            self._brokers.setdefault((each.broker.url, each.broker.root_sha256), []).append(each)
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process's id while it runs."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process, which waits for its task. OSError when it cannot be started."""
        if self._brokers:
            self._process = _spawn()

    def keys(self, attestor: ReleaseAttestor, *, tolerant: bool) -> dict[str, Secret]:
        """Every key, by name; the caller wipes them. The process has ended when this returns or raises.

        ModelKeyError, which names the key, when one cannot be had; then none is left.
        """
        if not self._brokers:
            return {}
        if self._process is None:
            raise ModelKeyError("the key release process does not run", code="key-release")
        found: dict[str, Secret] = {}
        pipe = _pipe_to(self._process, time.monotonic() + self._seconds + _GRACE_SECONDS)
        try:
            pipe.send(TASK, self._task(attestor.provider.platform, tolerant))
            for wanted in self._brokers.values():
                self._one_broker(pipe, attestor, wanted, found)
            if self._process.wait(timeout=_GRACE_SECONDS) != 0:
                raise PipeError(f"it ended with code {self._process.returncode}")
        except BaseException as error:
            for secret in found.values():
                secret.wipe()
            if isinstance(error, PipeError | subprocess.TimeoutExpired):
                raise ModelKeyError(f"the key release process: {error}", code="key-release",
                                    hint="nothing was kept; start again") from None
            raise
        finally:
            self.close()
        return found

    def _task(self, platform: str, tolerant: bool) -> bytes:
        return json.dumps({
            "platform": platform, "tolerant": tolerant, "seconds": self._seconds,
            "brokers": [{"url": url, "root_sha256": root, "resources": [each.broker.resource for each in wanted]}
                        for (url, root), wanted in self._brokers.items()]}).encode()

    def _one_broker(self, pipe: Pipe, attestor: ReleaseAttestor, wanted: list[_Wanted],
                    found: dict[str, Secret]) -> None:
        challenge = bytes(_answer(pipe, NONCE, wanted[0].name))
        evidence = attestor.attest(challenge[_SPKI_BYTES:], challenge[:_SPKI_BYTES])
        pipe.send(EVIDENCE, evidence.to_json())
        for each in wanted:
            document = _answer(pipe, KEY, each.name)
            try:
                where = f"{each.name}: the key broker's {each.broker.resource}"
                found[each.name] = Secret(keydocument.accept(document, where, each.version))
            finally:
                wipe(document)

    def close(self) -> None:
        """End the process, whatever it does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    with suppress(OSError):
                        stream.close()
            self._process = None


def _spawn() -> subprocess.Popen[bytes]:
    """The process, waiting for its task: this very interpreter, isolated, with an empty environment."""
    return subprocess.Popen([sys.executable, "-I", "-m", "appliance.boot.keyrelease_process"],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={}, cwd="/",
                            bufsize=0)


def _pipe_to(process: subprocess.Popen[bytes], deadline: float) -> Pipe:
    def descriptor(stream: IO[bytes] | None) -> int:
        return -1 if stream is None else stream.fileno()

    return Pipe(descriptor(process.stdout), descriptor(process.stdin), deadline)


def _answer(pipe: Pipe, kind: bytes, name: str) -> bytearray:
    """The body of the one frame that is expected. ModelKeyError, naming the key, for a refusal or no answer."""
    try:
        found, body = pipe.receive(kind, REFUSAL)
    except PipeError as error:
        code = "key-broker-unreachable" if "in time" in str(error) else "key-release"
        raise ModelKeyError(f"{name}: the key release process: {error}", code=code,
                            hint="does the key broker answer?") from None
    if found == kind:
        return body
    words = _refusal(body)
    code = words["code"] if words["code"] in CODES else "key-release"
    raise ModelKeyError(f"{name}: {words['summary']}", code=code, hint=words["hint"] or None)


def _refusal(body: bytearray) -> dict[str, str]:
    """The process's words, printable whatever they are."""
    try:
        value: Any = json.loads(bytes(body))
        return {key: "".join(each if each.isprintable() else "?" for each in str(value[key]))
                for key in ("code", "summary", "hint")}
    except (ValueError, LookupError, TypeError, RecursionError):
        return {"code": "", "summary": "the key release process refused without a reason", "hint": ""}
