"""The example relay and witness: whoever is down, slow or damaged is told, and the others are asked."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance.transparency import note, proofs
from appliance.transparency.checkpoint import Checkpoint
from appliance.transparency.note import COSIGNS, NoteKey
from examples.witness import relay
from examples.witness.witness import BrokenError, RefusedError, Witness, request

ROOT = Path(__file__).parents[2]
KEY = NoteKey("appliance/audit/00", Ed25519PrivateKey.generate().public_key().public_bytes_raw())


@contextmanager
def _listening(answer: bytes, *, drip: bool = False) -> Iterator[str]:
    """A peer that sends the same bytes to whoever connects; with `drip` one of them in a tenth of a second."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=send, args=(peer,), daemon=True).start()

    def send(peer: socket.socket) -> None:
        with peer:
            try:
                peer.recv(1 << 16)
                for place in range(len(answer) if drip else 1):
                    peer.sendall(answer[place:place + 1] if drip else answer)
                    time.sleep(0.1 if drip else 0)
            except OSError:
                return

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()


def _closed() -> str:
    """An address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return f"http://127.0.0.1:{found.getsockname()[1]}"


class _Appliance(BaseHTTPRequestHandler):
    """What an appliance answers to a relay, after docs/reference/api.md, with peers at these addresses."""

    peers: dict[str, str]
    authority: str

    def do_GET(self) -> None:
        """The requests that are to be carried."""
        request = "old 0\n\nx\n"
        self._send({"witnesses": [{"name": name, "url": url, "request": request} for name, url in self.peers.items()]}
                   if self.path.endswith("witnesses") else
                   {"url": self.authority, "request": base64.b64encode(b"x").decode()})

    def do_POST(self) -> None:
        """Take what was answered."""
        self.rfile.read(int(self.headers["content-length"]))
        self._send({"size": 7, "time": "2026-03-01T09:00:00Z"})

    def _send(self, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _carried(peers: dict[str, str], authority: str) -> tuple[int, dict[str, str], str]:
    """Exit code, outcomes and standard error of one round by the command."""
    handler = type("Handler", (_Appliance,), {"peers": peers, "authority": authority})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        done = subprocess.run(
            [sys.executable, "-c", "import examples.witness.relay as relay; relay.SECONDS = 2.0; "
             "raise SystemExit(relay.main())", f"http://127.0.0.1:{server.server_address[1]}"], cwd=ROOT, text=True,
            capture_output=True, timeout=60, check=False, env={**os.environ, "APPLIANCE_KEY": "sk-x"})
    finally:
        server.shutdown()
        server.server_close()
    return done.returncode, json.loads(done.stdout), done.stderr


def test_whoever_is_down_does_not_keep_the_others() -> None:
    """Closed, gone at once, dripping for ever, not HTTP, endless, elsewhere: each is told, the last two are asked."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n"
    moved = b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n"
    with _listening(b"") as leaves, _listening(head + b"x: y\r\n" * 1000, drip=True) as dripping, \
            _listening(b"garbage\r\n\r\n") as garbage, \
            _listening(head + b"\r\n" + bytes(2 << 20)) as endless, \
            _listening(moved) as elsewhere, \
            _listening(head + b"content-length: 2\r\n\r\nok") as good:
        peers = {"closed": _closed(), "leaves": leaves, "dripping": dripping, "garbage": garbage, "endless": endless,
                 "elsewhere": elsewhere, "unusable": "https://[", "good": good}
        begun = time.monotonic()
        code, told, errors = _carried(peers, good)
    assert time.monotonic() - begun < 30
    assert (1, "cosigned 7", "dated 7: 2026-03-01T09:00:00Z") == (code, told["good"], told["timestamp"])
    assert "Traceback" not in errors
    assert [*peers, "timestamp"] == list(told)
    assert [] == [name for name in peers if name != "good" and not told[name].startswith(("failed: ", "refused: 302"))]


def test_an_authority_that_is_down_is_told() -> None:
    """After the witnesses; and where all answer, the exit code is 0."""
    with _listening(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok") as good:
        code, told, _ = _carried({"w1": good}, _closed())
        assert (1, "cosigned 7", True) == (code, told["w1"], told["timestamp"].startswith("failed: "))
        assert 0 == _carried({"w1": good}, good)[0]


@pytest.mark.parametrize("answer", [b"", b"[]", b"{}", b'{"witnesses":1}', b'{"witnesses":[1]}', b"\xff", b"[" * 10000])
def test_an_appliance_that_says_nothing_of_use_is_told(answer: bytes) -> None:
    """By an error of its own."""
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(answer)
    with _listening(head + answer) as url:
        with pytest.raises(relay.FailedError):
            relay.relay(url, "sk-x")
        assert relay.stamp(url, "sk-x").startswith(("failed: ", "no authority"))


def _witness(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "examples.witness", *words], cwd=ROOT, text=True, capture_output=True,
                          timeout=60, check=False)


@pytest.mark.parametrize("key", [
    "nonsense", "a+b+c", "", KEY.text[:-4], NoteKey("w1", KEY.public, COSIGNS).text, NoteKey("a b", KEY.public).text,
    NoteKey("log", bytes([1]) + bytes(31)).text],
    ids=["nonsense", "parts", "empty", "cut", "kind", "name", "small order"])
def test_the_example_witness_refuses_a_bad_key(key: str, tmp_path: Path) -> None:
    """By a usage error: no form of a key, another's id, a witness's, and one that anybody signs by."""
    done = _witness(str(tmp_path / "w"), key)
    assert (2, False) == (done.returncode, "Traceback" in done.stderr)
    assert "error:" in done.stderr


def test_a_witness_has_its_key_before_there_is_a_log(tmp_path: Path) -> None:
    """A policy names it, and the log's key comes after that. It is the same key when logs are named."""
    first, second = _witness(str(tmp_path / "w"), "--name", "w1"), _witness(str(tmp_path / "w"), "--name", "w1")
    assert (0, first.stderr) == (first.returncode, second.stderr)
    key = Witness(tmp_path / "w", "w1", [KEY]).key
    assert f'{key.text}\npublic_key = "ed25519:{key.public.hex()}"\n' == first.stderr


def test_a_log_may_have_several_keys(tmp_path: Path) -> None:
    """One in a file has another at each boot: each is taken that was named, and no other."""
    privates = [Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in (1, 2, 3)]
    keys = [NoteKey("log", each.public_key().public_bytes_raw()) for each in privates]
    witness, leaves = Witness(tmp_path, "w1", keys[:2]), [bytes([number]) * 32 for number in range(4)]
    sizes = [0, 1, 2, 3]
    for number, private in enumerate(privates):
        size = sizes[number + 1]
        here = Checkpoint("log", size, proofs.root(leaves[:size]))
        signed = note.Note(here.text, (note.sign(here.text, "log", private),)).encode()
        grown = proofs.grown(leaves[:size], sizes[number]) if sizes[number] else ()
        body = request(sizes[number], grown, signed)
        if number < 2:
            assert witness.add_checkpoint(body).startswith("— w1 ")
        else:
            with pytest.raises(RefusedError, match="403"):
                witness.add_checkpoint(body)


def test_the_example_witness_begins_nothing_anew(tmp_path: Path) -> None:
    """A damaged key or state is told: without what it cosigned last it would cosign a second history."""
    Witness(tmp_path, "w1", [KEY])
    seed = (tmp_path / "key").read_bytes()
    (tmp_path / "key").write_bytes(seed[:-1])
    assert (2, False) == (lambda done: (done.returncode, "Traceback" in done.stderr))(_witness(str(tmp_path), KEY.text))
    (tmp_path / "key").write_bytes(seed)
    for state in ("", "[]", "{", '{"log": 1}', '{"log": [1]}', '{"log": [-1, ""]}', '{"log": [1, "zz"]}'):
        (tmp_path / "logs.json").write_text(state)
        with pytest.raises(BrokenError):
            Witness(tmp_path, "w1", [KEY])
    (tmp_path / "file").touch()
    assert 2 == _witness(str(tmp_path / "file"), KEY.text).returncode
