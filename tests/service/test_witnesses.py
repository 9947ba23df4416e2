"""Witnesses: the example witness, a relay, and a server whose log has their cosignatures."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance.auditor.examine import Trust, examine
from appliance.transparency import note, proofs, reading
from appliance.transparency.checkpoint import Checkpoint
from appliance.transparency.note import Note, NoteKey
from appliance.transparency.tree import leaf_hash
from examples.witness import relay
from examples.witness.server import Server as WitnessServer
from examples.witness.witness import RefusedError, Witness, request
from tests.support.engines import synthetic_model
from tests.support.server import AUDITOR_KEY, Server, write_policy
from tests.support.timestamping import Authority, answering

LEAVES = [leaf_hash(bytes([number])) for number in range(40)]
PRIVATE = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
LOG = NoteKey("appliance/audit/00", PRIVATE.public_key().public_bytes_raw())


def _signed(size: int, *, origin: str = LOG.name, private: Ed25519PrivateKey = PRIVATE, fork: int = 0) -> bytes:
    root = proofs.root([*LEAVES[:size - fork], *LEAVES[40 - fork:]])
    here = Checkpoint(origin, size, root)
    return Note(here.text, (note.sign(here.text, origin, private),)).encode()


def _grown(old: int, size: int) -> tuple[bytes, ...]:
    return proofs.grown(LEAVES[:size], old)


def test_a_witness_cosigns_what_grew_and_nothing_else(tmp_path: Path) -> None:
    """The statuses of C2SP tlog-witness; its state outlives it."""
    witness = Witness(tmp_path, "w1", [LOG])
    line = witness.add_checkpoint(request(0, (), _signed(7)), at=1_800_000_000)
    here, signed = reading.signed_head(_signed(7))
    found = Note(here.text, (*signed.signatures, *note.parse_lines(line)))
    assert 1_800_000_000 == witness.key.check(found)
    again = Witness(tmp_path, "w1", [LOG])
    assert witness.key == again.key
    refused = [
        (409, "7\n", request(0, (), _signed(9))), (422, "", request(7, (), _signed(9))),
        (422, "", request(7, _grown(7, 9), _signed(9, fork=3))), (409, "7\n", request(7, (), _signed(7, fork=2))),
        (400, "", request(10, (), _signed(9))), (404, "", request(0, (), _signed(9, origin="another/log"))),
        (403, "", request(7, _grown(7, 9), _signed(9, private=Ed25519PrivateKey.generate()))),
        (400, "", b"old 07\n\n" + _signed(9)), (400, "", b"new 7\n\n" + _signed(9)), (400, "", _signed(9)),
        (400, "", b"")]
    for status, body, asked in refused:
        with pytest.raises(RefusedError) as caught:
            again.add_checkpoint(asked)
        assert (status, body) == (caught.value.status, caught.value.body)
    for old, size in ((7, 7), (7, 20), (20, 33)):
        again.add_checkpoint(request(old, _grown(old, size), _signed(size)))


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[tuple[Server, WitnessServer, Path]]:
    """A server with one witness, of which the log's key is not known beforehand."""
    witness = Witness(tmp_path / "witness", "w1", [])
    listening = WitnessServer(witness)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    model = tmp_path / "tiny.gguf"
    model.write_bytes(synthetic_model("Q8_0"))
    policy = write_policy(tmp_path, {"tiny": model}, schema=2, audit=f"""
        checkpoint_interval = "1s"
        witness "w1" {{
          url        = "https://witness.example"
          public_key = "ed25519:{witness.key.public.hex()}"
        }}
        timestamp_authority {{
          url         = "https://tsa.example"
          root_sha256 = "{Authority(tmp_path / "tsa").fingerprint()}"
        }}""")
    server = Server(policy, [model]).wait_ready()
    try:
        yield server, listening, tmp_path
    finally:
        server.stop()
        listening.shutdown()
        listening.server_close()


def test_cosignatures_come_into_the_log(deployment: tuple[Server, WitnessServer, Path]) -> None:
    """By a relay that has an auditor's key: each grows from the one before, and a forged one is refused."""
    server, listening, folder = deployment
    with answering(Authority.at(folder / "tsa")) as authority, server.http(AUDITOR_KEY) as auditor, \
            server.http() as user:
        seen = set()
        for _ in range(60):
            answer = auditor.get("/v1/audit/checkpoint")
            if answer.status_code == 200:
                assert ["text/plain; charset=utf-8"] == answer.headers.get_list("content-type")
                here, _ = reading.signed_head(answer.content)
                if here.origin not in listening.witness._logs:
                    first = server.audit("log.opened")[0]["audit_key_ed25519"]
                    listening.witness._logs[here.origin] = [NoteKey(here.origin, bytes.fromhex(str(first)))]
                seen.add(relay.relay(server.url, AUDITOR_KEY, listening.url)["w1"])
                seen.add(relay.stamp(server.url, AUDITOR_KEY, authority).partition(":")[0])
            if len({each for each in seen if each.startswith("cosigned")}) >= 3:
                break
            body = {"model": "tiny", "prompt": "x", "max_tokens": 1}
            assert 200 == user.post("/v1/completions", json=body).status_code
            time.sleep(0.5)
        assert 3 <= len({each for each in seen if each.startswith("cosigned")}), seen
        forged = Note(here.text, (note.sign(here.text, "w1", PRIVATE, when=1),)).signatures[0].line()
        for body in (forged, "", "— w1 " + base64.b64encode(bytes(76)).decode() + "\n", "x" * 5000):
            assert 400 <= auditor.post("/v1/audit/witnesses/w1", content=body.encode()).status_code < 500
        assert 404 == auditor.post("/v1/audit/witnesses/w2", content=forged.encode()).status_code
        assert 403 == user.get("/v1/audit/checkpoint").status_code
    server.stop()
    lines = (folder / "audit.jsonl").read_bytes().splitlines(keepends=True)
    root = Authority.at(folder / "tsa").fingerprint()
    report = examine(lines, trust=Trust(witnesses=(listening.witness.key,), authority_sha256=root))
    assert (None, []) == (report.bad, report.notes)
    assert 2 <= len(report.stamps) == len({each for each in seen if each.startswith("dated")})
    assert 3 <= report.cosignatures
    at = next(number for number, line in enumerate(lines) if b'"audit.cosigned"' in line)
    other = Trust(witnesses=(NoteKey("w1", PRIVATE.public_key().public_bytes_raw(), note.COSIGNS),))
    assert at == getattr(examine(lines, trust=other).bad, "position", None)
