"""Attested key release: a real key release process, real HTTPS on the loopback, the reference broker and bad ones."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from appliance import isolated
from appliance.attestation.binding import Build
from appliance.attestation.collect.release import BrokerSession, ReleaseAttestor
from appliance.attestation.evidence import Evidence, ReportWithCollateral
from appliance.attestation.simulated.collecting.collector import SimulatedProvider
from appliance.codec import jwe as keyrelease_jwe
from appliance.errors import ModelKeyError
from appliance.keys.providers import Secret
from appliance.keys.release import release as keyrelease
from appliance.keys.release.release import KeyRelease
from appliance.policy import Loaded, load
from appliance.policy.schema.keys import KeySource
from appliance.sandbox import landlock
from tests.support import brokers, waiting
from tests.support.brokers import Authority, answer, policy_of, read_request, reference, scripted
from tests.support.require import absent

KEY = bytes(range(3, 35))
SELF_TEST = b"\x07" * 48
BUILD = Build(version="0.1.0")
CONFIG = """
port = 0
certificate = "server.pem"
private_key = "server.key"
log = "broker.jsonl"
"""
RULE = """
[[release]]
resource = "default/key/demo"
key_file = "demo.key"
version = 3
policy = "deployment.hcl"
platforms = ["simulated"]
proves_nothing = true
"""
POLICY = Path(__file__).parents[2] / "examples/demo.hcl"


def write_broker(folder: Path, rules: str = RULE, authority: Authority | None = None) -> Path:
    """A broker's configuration with everything that it names."""
    (authority or Authority()).write(folder)
    (folder / "demo.key").touch(0o600)
    (folder / "demo.key").write_text(KEY.hex())
    (folder / "deployment.hcl").write_bytes(POLICY.read_bytes())
    path = folder / "broker.toml"
    path.write_text(CONFIG + rules)
    return path


def key_at(url: str, pin: str, version: int | None = None, resource: str = "default/key/demo") -> KeySource:
    """A policy's key block."""
    pinned = {} if version is None else {"version": version}
    return KeySource.model_validate({"provider": "broker", **pinned, "broker": {
        "url": url, "root_sha256": pin, "resource": resource}})


def attestor(loaded: Loaded | None = None, provider: Any = None) -> ReleaseAttestor:
    """What the boot says of itself, on the simulated platform."""
    loaded = loaded or load(POLICY)
    return ReleaseAttestor(provider or SimulatedProvider(loaded.host_data), loaded.digest, SELF_TEST, BUILD)


@contextmanager
def started(keys: dict[str, KeySource], seconds: float = 20) -> Iterator[KeyRelease]:
    """A key release whose process runs."""
    release = KeyRelease(keys, seconds=seconds)
    release.start({})
    try:
        yield release
    finally:
        release.close()


def released(keys: dict[str, KeySource], asker: ReleaseAttestor | None = None, seconds: float = 20) -> dict[str, bytes]:
    """The keys, copied."""
    with started(keys, seconds) as release:
        found = release.keys(asker or attestor(), tolerant=True)
        assert release.pid is None, "the process has ended"
        return {name: bytes(secret.data) for name, secret in found.items()}


def refused(keys: dict[str, KeySource], asker: ReleaseAttestor | None = None, seconds: float = 20) -> ModelKeyError:
    """The error instead of keys."""
    with pytest.raises(ModelKeyError) as caught:
        released(keys, asker, seconds)
    assert KEY.hex() not in str(caught.value)
    return caught.value


def log_of(folder: Path) -> list[dict[str, Any]]:
    """The broker's decisions."""
    path = folder / "broker.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_no_session_of_the_reference_broker_is_resumed(tmp_path: Path) -> None:
    """Each connection has a handshake of its own. What the broker sends as a ticket is a number that opens nothing, so
    it has no key for tickets."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    kept = None
    with reference(write_broker(tmp_path)) as broker:
        for _ in range(2):
            with socket.create_connection(broker.server_address[:2]) as raw, trusting.wrap_socket(
                    raw, session=kept) as connection:
                connection.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
                assert connection.recv(65536)  # what comes with the handshake is read before
                assert ("TLSv1.3", False) == (connection.version(), connection.session_reused)
                kept = connection.session


def test_a_key_for_the_right_policy(tmp_path: Path) -> None:
    """The reference broker releases two keys in one handshake, with their versions, and notes it."""
    second = RULE.replace("key/demo", "key/other").replace("version = 3", "version = 9")
    with reference(write_broker(tmp_path, RULE + second)) as broker:
        pin = Authority().pin
        keys = {"model demo": key_at(broker.url, pin, 3),
                "model other": key_at(broker.url, pin, None, "default/key/other")}
        assert {"model demo": KEY, "model other": KEY} == released(keys)
    assert ["released", "released"] == [line["event"] for line in log_of(tmp_path)]
    assert KEY.hex() not in (tmp_path / "broker.jsonl").read_text()


def test_no_broker_no_process() -> None:
    """A policy without a broker starts nothing."""
    key = KeySource.model_validate({"provider": "file", "path": "/nowhere"})
    with started({"model demo": key}) as release:
        assert release.pid is None
        assert {} == release.keys(attestor(), tolerant=True)


def test_the_process_knows_neither_policy_nor_models() -> None:
    """What stands between brokers and keys is small: it has none of the code that reads policies and models."""
    look = "import sys, appliance.keys.release.process; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout.split()
    assert "appliance.sandbox.landlock" in loaded
    assert [] == [name for name in loaded if name.startswith(("appliance.policy", "appliance.models", "pydantic"))]


DENIED = [
    ("", "default/key/demo", "no rule releases"),
    (RULE, "default/key/none", "no rule releases"),
    (RULE.replace("version = 3", f'version = 3\nself_test_sha384 = "{"08" * 48}"'), "default/key/demo", "self-test"),
]


@pytest.mark.parametrize(("rules", "resource", "reason"), DENIED)
def test_denied_by_rule(tmp_path: Path, rules: str, resource: str, reason: str) -> None:
    """Without a rule that holds there is no key; the reason stands in the broker's log and nowhere else."""
    with reference(write_broker(tmp_path, rules)) as broker:
        error = refused({"model demo": key_at(broker.url, Authority().pin, None, resource)})
    assert "key-denied" == error.code
    assert error.summary.startswith("model demo: the key broker at https://127.0.0.1:")
    assert "refuses to release" in error.summary
    [line] = log_of(tmp_path)
    assert "denied" == line["event"]
    assert reason in line["reason"]


class Lying(SimulatedProvider):
    """A provider that signs other report data."""

    def collect(self, report_data: bytes) -> ReportWithCollateral:
        """A report with one bit of the report data flipped."""
        return super().collect(report_data[:-1] + bytes([report_data[-1] ^ 1]))


class Altered(ReleaseAttestor):
    """An attestor whose evidence says something else in one place."""

    def attest(self, nonce: bytes, release_spki_sha256: bytes, session: BrokerSession | None = None) -> Evidence:
        """Evidence with another nonce or another key."""
        which = self.build.code_sha384 or ""
        nonce = bytes(32) if which.startswith("aa") else nonce
        return super().attest(nonce, bytes(32) if which.startswith("bb") else release_spki_sha256, session)


def test_wrong_policy_nonce_or_key(tmp_path: Path) -> None:
    """Evidence of another policy, launch, nonce, release key, or a report of something else: no key, each by name."""
    loaded = load(POLICY)
    other_policy = ReleaseAttestor(SimulatedProvider(loaded.host_data), b"\x01" * 48, SELF_TEST, BUILD)
    other_launch = attestor(provider=SimulatedProvider(bytes(32)))
    other_nonce = Altered(SimulatedProvider(loaded.host_data), loaded.digest, SELF_TEST,
                          Build(version="0.1.0", code_sha384="aa" * 48))
    other_key = Altered(SimulatedProvider(loaded.host_data), loaded.digest, SELF_TEST,
                        Build(version="0.1.0", code_sha384="bb" * 48))
    forged = attestor(provider=Lying(loaded.host_data))
    with reference(write_broker(tmp_path)) as broker:
        keys = {"model demo": key_at(broker.url, Authority().pin)}
        for asker, reason in ((other_policy, "policy: found"), (other_launch, "launch-policy: found"),
                              (other_nonce, "another nonce"), (other_key, "release-key: found"),
                              (forged, "report_data is not the digest")):
            assert "key-denied" == refused(keys, asker).code
            assert reason in log_of(tmp_path)[-1]["reason"]
        assert {"model demo": KEY} == released(keys)


def test_a_nonce_serves_once(tmp_path: Path) -> None:
    """An attestation that was taken is not taken again, nor under another session's cookie."""
    config, loaded = write_broker(tmp_path), policy_of(tmp_path, "key")  # Python's ssl has no exporter
    with reference(config) as broker:
        context = ssl.create_default_context(cadata=Authority().root.public_bytes(
            brokers.Encoding.PEM).decode())

        def ask(path: str, message: Any, cookie: str | None = None) -> tuple[int, Any, str | None]:
            request = urllib.request.Request(  # noqa: S310
                f"{broker.url}/kbs/v0/{path}", None if message is None else json.dumps(message).encode(),
                {} if cookie is None else {"cookie": cookie})
            try:
                with urllib.request.urlopen(request, context=context) as reply:  # noqa: S310
                    return reply.status, json.loads(reply.read()), reply.headers["set-cookie"]
            except urllib.error.HTTPError as error:
                return error.code, json.loads(error.read()), None

        hello = {"version": "0.4.0", "tee": "sample", "extra-params": ""}
        _, challenge, cookie = ask("auth", hello)
        key = keyrelease_jwe.new_key()
        nonce = base64.b64decode(challenge["nonce"])
        made = attestor(loaded).attest(nonce, hashlib.sha256(keyrelease_jwe.spki(key.public_key())).digest())
        message = {"runtime-data": {"nonce": challenge["nonce"],
                                    "tee-pubkey": keyrelease_jwe.public_jwk(key.public_key())},
                   "tee-evidence": {"primary_evidence": json.loads(made.to_json()), "additional_evidence": ""}}
        name = str(cookie).split(";")[0]
        assert 401 == ask("resource/default/key/demo", None, name)[0]
        status, token, _ = ask("attest", message, name)
        assert (200, 3) == (status, len(token["token"].split(".")))
        assert 200 == ask("resource/default/key/demo", None, name)[0]
        assert 401 == ask("attest", message, name)[0]
        _, _, other = ask("auth", hello)
        assert 401 == ask("attest", message, str(other).split(";")[0])[0]
        assert 401 == ask("auth", {**hello, "version": "0.1.0"})[0]
        assert 401 == ask("resource/default/key/demo", None)[0]


def test_versions(tmp_path: Path) -> None:
    """The policy's version is the only one accepted."""
    with reference(write_broker(tmp_path)) as broker:
        error = refused({"model demo": key_at(broker.url, Authority().pin, 4)})
    assert "key-version" == error.code
    assert ("model demo: the key broker's default/key/demo: the key has version 3; the policy accepts version 4 "
            "alone") == error.summary


def test_the_pinned_root(tmp_path: Path) -> None:
    """Another root, a root that is not sent, another host's name, an expired certificate, plain HTTP: nothing is sent
    and nothing is taken."""
    sent: list[bytes] = []

    def listen(connection: socket.socket) -> None:
        sent.append(read_request(connection))

    cases: list[tuple[Authority, str, bool, str]] = [
        (Authority("two"), Authority().pin, True, "none of its issuers' certificates has the SHA-256"),
        (Authority(), Authority().pin, False, "none of its issuers' certificates has the SHA-256"),
        (Authority("three", host="broker.example.org"), "", True, "does not verify"),
        (Authority("four", days=(-30, -1)), "", True, "does not verify"),
    ]
    for authority, pin, with_root, reason in cases:
        with scripted(tmp_path, listen, authority, with_root=with_root) as url:
            error = refused({"model demo": key_at(url, pin or authority.pin)})
        assert ("key-broker-untrusted", True) == (error.code, reason in error.summary), error.summary
    with scripted(tmp_path, listen, tls=False) as url:
        connection_lost = refused({"model demo": key_at(url, Authority().pin)}, seconds=2)
    assert connection_lost.code in ("key-broker-untrusted", "key-broker-unreachable")
    assert [] == [each for each in sent if b"HTTP" in each]


CHALLENGE = answer(200, b'{"nonce":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=","extra-params":""}')
TOKEN = answer(200, b'{"token":"a.b.c"}')
BAD = [
    ([answer(200, b"\xff\xfe")], "key-broker-answer", "challenge is not JSON"),
    ([answer(200, b"[]")], "key-broker-answer", "no JSON object"),
    ([answer(200, b'{"nonce":1}')], "key-broker-answer", "nonce is absent or no string"),
    ([answer(200, b'{"nonce":"AAAA"}')], "key-broker-answer", "nonce has 3 bytes"),
    ([answer(200, b'{"nonce":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAB="}')], "key-broker-answer", "spelling"),
    ([answer(200, b'{"nonce":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="}', cookie=None)], "key-broker-answer",
     "cookie"),
    ([answer(200, b'{"nonce":"A","nonce":"A"}')], "key-broker-answer", "has a key twice"),
    ([answer(200, b"[" * 60000)], "key-broker-answer", "is not JSON"),
    ([answer(200, b" " * (1 << 17))], "key-broker-answer", "more than 65536 bytes"),
    ([b"HTTP/1.1 200 X\r\n" + b"a: b\r\n" * 200 + b"\r\n"], "key-broker-unreachable", "headers"),
    ([b"SSH-2.0-OpenSSH\r\n\r\n"], "key-broker-unreachable", "does not answer"),
    ([answer(302, b"", extra="location: https://127.0.0.1:1/\r\n")], "key-broker-answer", "HTTP status 302"),
    ([answer(500, b'{"detail":"on fire \\u001b[31m"}')], "key-broker-answer", "HTTP status 500: on fire ?[31m"),
    ([answer(401, b'{"detail":"go away"}')], "key-denied", "does not accept the evidence: go away"),
    ([CHALLENGE, answer(403, b"no")], "key-denied", "refuses"),
    ([CHALLENGE, TOKEN, answer(404, b"{}")], "key-absent", "has no such key to release default/key/demo"),
    ([CHALLENGE, TOKEN, answer(200, b"{}")], "key-broker-answer", "JWE: ciphertext is absent"),
    ([CHALLENGE, TOKEN, answer(200, KEY.hex().encode())], "key-broker-answer", "JWE is not JSON"),
    ([CHALLENGE, TOKEN, b""], "key-broker-unreachable", "does not answer"),
]


@pytest.mark.parametrize(("answers", "code", "words"), BAD, ids=[case[2] for case in BAD])
def test_bad_answers(tmp_path: Path, answers: list[bytes], code: str, words: str) -> None:
    """Garbage, refusals, redirects and huge bodies: no key, and one clear word."""
    waiting = list(answers)

    def play(connection: socket.socket) -> None:
        while waiting and read_request(connection):
            connection.sendall(waiting.pop(0))

    with scripted(tmp_path, play) as url:
        error = refused({"model demo": key_at(url, Authority().pin)})
    assert (code, True) == (error.code, words in error.summary), error.summary


def test_silence(tmp_path: Path) -> None:
    """A broker that hangs, drips, or is not there costs the time that is allowed and no more; while it hangs, nothing
    of the task stands in the process's arguments or environment."""
    came, left = threading.Event(), threading.Event()

    def hang(connection: socket.socket) -> None:
        came.set()
        connection.settimeout(waiting.STALL_SECONDS)
        try:
            read_request(connection)
            gone = b"" == connection.recv(1)
        except OSError as error:
            gone = not isinstance(error, TimeoutError)
        if gone:
            left.set()

    def drip(connection: socket.socket) -> None:
        came.set()
        try:
            read_request(connection)
            connection.sendall(b"HTTP/1.1 200 X\r\ncontent-length: 60000\r\n\r\n")
            for _ in range(600):
                connection.sendall(b" ")
                time.sleep(0.1)
        except OSError:
            left.set()

    def never_begin(connection: socket.socket) -> None:
        came.set()
        try:
            read_request(connection)
            connection.sendall(b"HTTP/1.1 200 X\r\n")
            for byte in 100 * b"x-a: b\r\n":
                connection.sendall(bytes([byte]))
                time.sleep(0.1)
        except OSError:
            left.set()

    def go_on(connection: socket.socket) -> None:
        came.set()
        try:
            read_request(connection)
            for _ in range(600):
                connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                time.sleep(0.1)
        except OSError:
            left.set()

    for script, seconds in itertools.product((hang, drip, never_begin, go_on), (1.5, 15.0)):
        if seconds > 2 and came.is_set():  # on a busy machine it may not even have asked in less
            continue
        came.clear()
        left.clear()
        with scripted(tmp_path, script) as url:
            with started({"model demo": key_at(url, Authority().pin)}, seconds=seconds) as release:
                here = Path("/proc") / str(release.pid)
                while not (here / "cmdline").read_bytes():
                    time.sleep(0.01)
                assert b"" == (here / "environ").read_bytes()
                assert b"appliance.keys.release.process:main" == (here / "cmdline").read_bytes().split(b"\0")[-2]
                with pytest.raises(ModelKeyError) as caught:
                    release.keys(attestor(), tolerant=True)
                assert not here.exists()
            assert "key-broker-unreachable" == caught.value.code, caught.value.summary
            assert not came.is_set() or left.wait(waiting.STALL_SECONDS), "it gave up, and not the broker"
    with socket.socket() as taken:  # no one listens there, and no one else can
        taken.bind(("127.0.0.1", 0))
        keys = {"model demo": key_at(f"https://127.0.0.1:{taken.getsockname()[1]}", Authority().pin)}
        for seconds in (6, 60):  # on a busy machine it may not even have asked in less
            error = refused(keys, seconds=seconds)
            if "Connection refused" in error.summary:
                break
    assert ("key-broker-unreachable", True) == (error.code, "Connection refused" in error.summary)


def test_a_broker_that_comes_late(tmp_path: Path) -> None:
    """While nobody listens the process asks again, within its time."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    config = write_broker(tmp_path)
    config.write_text(config.read_text().replace("port = 0", f"port = {port}"))
    with started({"model demo": key_at(f"https://127.0.0.1:{port}", Authority().pin)}) as release:
        keys: dict[str, Secret] = {}
        asking = threading.Thread(target=lambda: keys.update(release.keys(attestor(), tolerant=True)))
        asking.start()
        time.sleep(1.2)
        with reference(config):
            asking.join()
    assert KEY == keys["model demo"].data


def test_a_process_that_dies(tmp_path: Path) -> None:
    """A key release process that is killed, or was never started, gives no key and one word."""
    def hang(connection: socket.socket) -> None:
        connection.recv(1)

    with scripted(tmp_path, hang) as url:
        keys = {"model demo": key_at(url, Authority().pin)}
        with started(keys) as release:
            os.kill(release.pid or 0, 9)
            with pytest.raises(ModelKeyError, match="ended early"):
                release.keys(attestor(), tolerant=True)
        with pytest.raises(ModelKeyError, match="does not run"):
            KeyRelease(keys).keys(attestor(), tolerant=True)


LINGERS = """
import atexit, sys, time
from appliance.keys.release import process as keyrelease_process
atexit.register(time.sleep, {seconds})
sys.exit(keyrelease_process.main())
"""


def _lingering(seconds: float) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-I", "-c", LINGERS.format(seconds=seconds)], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={}, cwd="/", bufsize=0)


@pytest.mark.parametrize(("lingers", "seconds", "found"), [(3.0, 30.0, [KEY]), (60.0, 3.0, [])])
def test_a_process_that_ends_slowly(lingers: float, seconds: float, found: list[bytes], tmp_path: Path,
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine has all the time that is allowed, for the end of the process, too; and no more."""
    monkeypatch.setattr(keyrelease, "_spawn", lambda: _lingering(lingers))
    authority = Authority("five")
    with (reference(write_broker(tmp_path, authority=authority)) as broker,
          started({"model demo": key_at(broker.url, authority.pin)}, seconds=seconds) as release):
        here = Path("/proc") / str(release.pid)
        if found:
            keys = release.keys(attestor(), tolerant=True)
            assert found == [keys["model demo"].data]
        else:
            begun = time.monotonic()
            with pytest.raises(ModelKeyError):
                release.keys(attestor(), tolerant=True)
            assert time.monotonic() - begun < 30
        assert not here.exists()


def test_as_on_hardware(tmp_path: Path) -> None:
    """With every measure of hardening demanded, a broker found by its name still hands over the key."""
    authority = Authority("five", host="localhost")
    with reference(write_broker(tmp_path, authority=authority)) as broker:
        url = broker.url.replace("127.0.0.1", "localhost")
        with started({"model demo": key_at(url, authority.pin)}) as release:
            keys = release.keys(attestor(), tolerant=False)
            assert KEY == keys["model demo"].data


def test_a_broker_is_reached_ahead(tmp_path: Path) -> None:
    """Hardened as on hardware, the process asks for a challenge first and for the key later; one that is not there is
    told of, and one that cannot be trusted ends it."""
    with reference(write_broker(tmp_path)) as broker, socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        taken.close()
        keys = {"model demo": key_at(broker.url, Authority().pin)}
        with started(keys) as release:
            release.reach("simulated", tolerant=False)
            assert [] == release.reached()
            found = release.keys(attestor(), tolerant=False)
            assert KEY == found["model demo"].data
        with started({**keys, "model other": key_at(f"https://127.0.0.1:{port}", Authority().pin)}) as release:
            release.reach("simulated", tolerant=False)
            words, = release.reached()
            assert f"the key broker at https://127.0.0.1:{port} does not answer" in words
        with started({**keys, "model other": key_at(broker.url, "ab" * 32)}) as release:
            release.reach("simulated", tolerant=False)
            with pytest.raises(ModelKeyError, match="has the SHA-256 abab") as caught:
                release.reached()
            assert "key-broker-untrusted" == caught.value.code
    assert ["released", "silent"] == [each["event"] for each in log_of(tmp_path)]


def test_what_the_process_may_do(tmp_path: Path) -> None:
    """One port, libraries and settings: every other port, file and listener is refused by the kernel."""
    if landlock.version() < landlock.NETWORK:
        absent("a kernel with Landlock 4 (Linux 6.7)")
    (tmp_path / "model").write_bytes(b"secret")
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        done = subprocess.run(
            isolated.command("tests.support.confined:main", [
                str(one.getsockname()[1]), str(two.getsockname()[1]), str(tmp_path / "model")]),
            capture_output=True, text=True, timeout=600, check=False, env={})
    no = "PermissionError"
    assert f"done {no} {no} {no} {no} {no} done" == done.stdout.strip(), done.stderr
