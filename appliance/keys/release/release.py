"""Keys from brokers and from a TPM: the boot's side of the key release process.

The process faces the network and the TPM; the boot makes the evidence, holds the policy's versions,
and trusts nothing that comes through the pipe beyond its form. A key goes from the pipe into one
bytearray and from there into a `Secret`.
"""

from __future__ import annotations

import base64
import json
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from appliance import isolated
from appliance.attestation.collect.release import BrokerSession, ReleaseAttestor
from appliance.attestation.tpm.chip import seal
from appliance.attestation.tpm.chip.client import DEVICE
from appliance.codec.printable import plain
from appliance.errors import ModelKeyError
from appliance.keys import document
from appliance.keys.policy_keys import STATE
from appliance.keys.providers import Secret
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
from appliance.policy import inputfile
from appliance.policy.schema.keys import Broker, KeySource
from appliance.secure.wipe import wipe

SECONDS = 60.0  # for all brokers of a policy together
_REACH_SECONDS = 180.0  # for the start of the process and one try at each broker, beside a boot that is emulated
_GRACE_SECONDS = 2.0  # so that the process can say itself that time ran out
CODES = ("key-denied", "key-absent", "key-broker-unreachable", "key-broker-untrusted", "key-broker-answer",
         "tpm-absent", "tpm-answer", "tpm-bank", "tpm-busy", "tpm-key-file", "tpm-other", "tpm-pcrs", "tpm-refused",
         "tpm-unmeasured", "hardening-refused", "hardening-environment")
SUFFIX = ".tpm-key"  # the file of a TPM-sealed key stands beside the file that it opens
_ANOTHER_DISK = "or give this one a blank disk of its own, for a new log"
_FOR_STATE = {
    "tpm-pcrs": "another image, policy or firmware than the one that made the disk: boot that one once with the "
    f"document of this one as its successor (appliance image successor), {_ANOTHER_DISK}",
    "tpm-other": f"boot with the TPM that the disk was made with, which was not cleared since; {_ANOTHER_DISK}",
    "tpm-key-file": f"somebody altered the disk: put back a copy of it, {_ANOTHER_DISK}"}
_DIGEST_BYTES = 32  # of SHA-256, and of an exporter


@dataclass(frozen=True)
class _NamedKey:
    """One key: its name in diagnostics, and what the policy says of it."""

    name: str
    key: KeySource
    file: Path | None = None  # of a TPM-sealed key

    @property
    def broker(self) -> Broker:
        """Where it is, if a broker has it."""
        if self.key.broker is None:
            raise ModelKeyError(f"{self.name}: no broker has its key", code="key-release")
        return self.key.broker


@dataclass(frozen=True)
class OwnKey:
    """The TPM-sealed key of the appliance's own state: the file of it in each place, empty where
    there is none, and the registers of the image that follows, if one is named. Without a file a
    key is made."""

    files: tuple[bytes, ...]
    successor: Mapping[int, bytes]


class KeyRelease:
    """The keys of a policy that brokers or a TPM hold. Start it before hardening, ask it once,
    close it in any case.

    Nothing is started for a policy that names neither. The state's key in a TPM is the appliance's
    own: made here, while all others are brought.
    """

    def __init__(self, keys: Mapping[str, KeySource], *, seconds: float = SECONDS, tpm: Path = DEVICE) -> None:
        """`keys` by name; those of other providers are left out."""
        self._brokers: dict[tuple[str, str, bool], list[_NamedKey]] = {}
        for name, key in keys.items():
            if key.provider == "broker" and (place := key.broker) is not None:
                handshake = place.url, place.root_sha256, place.session_binding == "required"
                self._brokers.setdefault(handshake, []).append(_NamedKey(name, key))
        by_tpm = [_NamedKey(name, key) for name, key in keys.items() if key.provider == "tpm"]
        self._sealed = [each for each in by_tpm if each.name != STATE]
        self._own = next((each for each in by_tpm if each.name == STATE), None)
        self.resealed: tuple[bytes, ...] = ()  # once keys were had: what to write in each place of the own key
        self._seconds, self._tpm = seconds, tpm
        self._task: dict[str, Any] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._reaching: Pipe | None = None  # from `reach` to `reached`

    @property
    def pid(self) -> int | None:
        """The process's id while it runs."""
        return None if self._process is None else self._process.pid

    def start(self, files: Mapping[str, Path]) -> None:
        """Start the process, which waits for its task. `files`: what each key opens, by the key's
        name; TPM-sealed keys stand beside them and are read now. ModelKeyError; OSError when no
        process can be started."""
        if not self._asked:
            return
        self._task = {
            "tpm": str(self._tpm),
            "sealed": [{"pcrs": each.key.pcrs, "file": _read(each.name, files[each.name]).hex()}
                       for each in self._sealed],
            "brokers": [{"url": url, "root_sha256": root, "session": session,
                         "resources": [each.broker.resource for each in wanted]}
                        for (url, root, session), wanted in self._brokers.items()]}
        self._process = _spawn()

    @property
    def _asked(self) -> bool:
        return bool(self._brokers or self._sealed or self._own)

    def reach(self, platform: str, *, tolerant: bool) -> None:
        """Have the process ask each broker for a challenge, while the boot goes on; `reached` says
        how that went. ModelKeyError."""
        if self._process is None or not self._brokers:
            return
        until = time.monotonic() + _REACH_SECONDS
        self._reaching = _pipe_to(self._process, until + _GRACE_SECONDS)
        try:
            self._reaching.send(REACH, json.dumps({
                **self._task, "until": until, "platform": platform, "tolerant": tolerant}).encode())
        except PipeError as error:
            raise _ended(error) from None

    def reached(self) -> list[str]:
        """Words about each broker that gives no challenge yet: it is asked again, for its key.
        ModelKeyError for one that cannot be trusted."""
        pipe, self._reaching = self._reaching, None
        if pipe is None:
            return []
        try:
            return [plain(str(each)) for each in json.loads(bytes(_answer(pipe, REACHED, "key release")))]
        except (ValueError, TypeError):
            raise _ended(PipeError("it sent what was not asked for")) from None

    def keys(self, attestor: ReleaseAttestor, *, tolerant: bool, own: OwnKey | None = None) -> dict[str, Secret]:
        """Every key, by name; the caller wipes them. The process has ended when this returns or
        raises. `own`: what there is of the state's key, if that is in a TPM.

        ModelKeyError, which names the key, when one cannot be had; then none is left.
        """
        if not self._asked:
            return {}
        if self._process is None:
            raise ModelKeyError("the key release process does not run", code="key-release")
        found: dict[str, Secret] = {}
        until = time.monotonic() + self._seconds  # of the machine's clock, so that both processes mean one moment
        deadline = until + _GRACE_SECONDS
        pipe = _pipe_to(self._process, deadline)
        try:
            task = {**self._task, "until": until, "platform": attestor.provider.platform, "tolerant": tolerant,
                    "endorsement": _endorsement(attestor), "own": self._own_task(own)}
            pipe.send(TASK, json.dumps(task).encode())
            for each in self._sealed:
                found[each.name] = _key(pipe, each, "the TPM-sealed key")
            if self._own is not None and own is not None:
                found[STATE] = _key(pipe, self._own, "the TPM-sealed key", _FOR_STATE)
                self.resealed = tuple(bytes(_answer(pipe, SEALED, STATE)) for _ in own.files)
            for (_, _, session), wanted in self._brokers.items():
                self._one_broker(pipe, attestor, wanted, found, session=session)
            if self._process.wait(timeout=max(_GRACE_SECONDS, deadline - time.monotonic())) != 0:
                raise PipeError(f"it ended with code {self._process.returncode}")
        except BaseException as error:
            for secret in found.values():
                secret.wipe()
            if isinstance(error, PipeError | subprocess.TimeoutExpired):
                raise _ended(error) from None
            raise
        finally:
            self.close()
        return found

    def _own_task(self, own: OwnKey | None) -> dict[str, Any] | None:
        if self._own is None or own is None:
            return None
        return {"files": [each.hex() for each in own.files], "pcrs": self._own.key.pcrs,
                "version": self._own.key.version or 1,
                "successor": {str(number): value.hex() for number, value in own.successor.items()}}

    def _one_broker(self, pipe: Pipe, attestor: ReleaseAttestor, wanted: list[_NamedKey],
                    found: dict[str, Secret], *, session: bool) -> None:
        """One handshake. `session`: the policy binds evidence to the connection to the broker."""
        challenge = bytes(_answer(pipe, NONCE, wanted[0].name))
        spki, connection, nonce, activation = _challenge(challenge, session=session)
        evidence = attestor.attest(nonce, spki, connection)
        answer = attestor.provider.activate(activation) if activation else b""
        pipe.send(EVIDENCE, evidence.to_json())
        if activation:
            pipe.send(ANSWER, answer)
        for each in wanted:
            found[each.name] = _key(pipe, each, f"the key broker's {each.broker.resource}")

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


def _ended(error: Exception) -> ModelKeyError:
    return ModelKeyError(f"the key release process: {error}", code="key-release", hint="nothing was kept; start again")


def _challenge(frame: bytes, *, session: bool) -> tuple[bytes, BrokerSession | None, bytes, bytes]:
    """The release key's digest, the connection to the broker where evidence is bound to it, the
    broker's nonce and its challenge to a TPM. PipeError for a frame that ends too soon."""
    end = (3 if session else 1) * _DIGEST_BYTES
    if len(frame) <= end:
        raise PipeError("it sent what was not asked for")
    spki, *connection = (frame[at:at + _DIGEST_BYTES] for at in range(0, end, _DIGEST_BYTES))
    nonce, activation = frame[end + 1:][:frame[end]], frame[end + 1 + frame[end]:]
    return spki, BrokerSession(*connection) if session else None, nonce, activation


def _endorsement(attestor: ReleaseAttestor) -> dict[str, Any] | None:
    """The material from which brokers challenge a TPM, as docs/formats/key-release.md has it; None
    on other platforms."""
    found = attestor.provider.endorsement()
    if found is None:
        return None
    key, certificate, chain = found
    return {"key": _text(key), "ek-certificate": _text(certificate), "chain": [_text(each) for each in chain]}


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _spawn() -> subprocess.Popen[bytes]:
    """The process, waiting for its task: this very interpreter, isolated, with an empty
    environment."""
    return subprocess.Popen(isolated.command("appliance.keys.release.process:main"),  # noqa: S603
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={}, cwd="/",
                            bufsize=0)


def _pipe_to(process: subprocess.Popen[bytes], deadline: float) -> Pipe:
    def descriptor(stream: IO[bytes] | None) -> int:
        return -1 if stream is None else stream.fileno()

    return Pipe(descriptor(process.stdout), descriptor(process.stdin), deadline)


def _read(name: str, opened: Path) -> bytes:
    """The file of a TPM-sealed key, which nobody needs to trust: the TPM authenticates it."""
    path = opened.with_name(opened.name + SUFFIX)
    try:
        return inputfile.read(path, seal.MAX_BYTES + 1)
    except OSError as error:
        raise ModelKeyError(f"{name}: the TPM-sealed key {path}: {error.strerror}", code="tpm-key-file",
                            hint="make it with: appliance model tpm-seal") from None


def _key(pipe: Pipe, wanted: _NamedKey, where: str, hints: Mapping[str, str] = MappingProxyType({})) -> Secret:
    """The next key from the process, of the version that the policy accepts. `hints`: the fix of a
    refusal by its code, where it is not the usual one."""
    text = _answer(pipe, KEY, wanted.name, hints)
    try:
        return Secret(document.accept(text, f"{wanted.name}: {where}", wanted.key.version))
    finally:
        wipe(text)


def _answer(pipe: Pipe, kind: bytes, name: str, hints: Mapping[str, str] = MappingProxyType({})) -> bytearray:
    """The body of the one frame that is expected. ModelKeyError, naming the key, for a refusal or
    no answer."""
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
    raise ModelKeyError(f"{name}: {words['summary']}", code=code, hint=hints.get(code) or words["hint"] or None)


def _refusal(body: bytearray) -> dict[str, str]:
    """The process's words, printable whatever they are."""
    try:
        value: Any = json.loads(bytes(body))
        return {key: plain(str(value[key])) for key in ("code", "summary", "hint")}
    except (ValueError, LookupError, TypeError, RecursionError):
        return {"code": "", "summary": "the key release process refused without a reason", "hint": ""}
