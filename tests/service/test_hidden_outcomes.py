"""Records and receipts that do not say how a request ended: one form, one size and one value, whatever came of it.

The server's privacy is that of a strict policy with small grids, as in `test_length_classes`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from appliance.api.adapters.parameters import NAMES
from appliance.api.problems import PROBLEMS
from appliance.audit.detail import OUTCOME_INFO, OUTCOME_NBYTES, SUITE, seal_outcome
from appliance.auditor import receipts
from appliance.auditor.receipts import ReceiptDemands
from appliance.cli.main import main
from tests.support import talking_models, tap
from tests.support.server import KEY, Server, write_policy
from tests.support.tap import Seen

CHAT = "/v1/chat/completions"
TEMPLATE = ("{% for message in messages %}[{{ message.role }}]{{ message.content or '' }}{% endfor %}{% if tools %}"
            "{{ tools | tojson }}{% endif %}[assistant]{# <tool_call> </tool_call> #}")
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 5}}, "required": ["city"],
          "additionalProperties": False}
LISTENER = 'listen "api" {\n kind = "ra-tls"\n port = 8443\n names = ["localhost"]\n}'
PRIVACY = ('timing_padding {{\n first_token = "600ms"\n total = "6s"\n cadence = "300ms"\n}}\nsize_padding = "8KiB"\n'
           'token_count_rounding = 256\nauditor_key = "x25519:{key}"')
AUDIT = 'receipts = true\n receipt_position = "later"\n checkpoint_interval = "1s"\n outcomes = "hidden"'
LIMITS = ("requests_per_minute = 1000\ntokens_per_minute = 1000000\nconcurrent_requests = 12\nprompt_tokens = 256\n"
          "generation_tokens = 256")
FIRST_CLASS = 6_000_000
ATTEMPTS = 12  # one of which must find the machine not busy
PLACED = ("seq", "prev", "time", "mono_ms", "leaf")  # what says when a record was made, and which it is
RANDOM = ("request", "request_digest", "answer_digest", "outcome")
PLAIN = {"model": "plain", "messages": [{"role": "user", "content": "so?"}], "temperature": 0, "seed": 7,
         "max_tokens": 40}
FORCED = {"tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}], "tool_choice": "required"}
STRUCTURE = {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA, "strict": True}}}
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # what is asked for -> what the auditor reads of its end
    "answered": ({}, {"finish": "stop", "status": 200, "model": "plain"}),
    "cut": ({"max_tokens": 2}, {"finish": "length", "completion_tokens": 2}),
    "called": (FORCED, {"status": 200}),
    "structured": (STRUCTURE, {"status": 200}),
    "unknown": ({"model": "none"}, {"code": "model_not_found", "status": 404}),
    "wrong": ({"temperature": -1}, {"code": "invalid_value", "param": "temperature", "status": 400}),
}


def test_the_longest_outcome_has_room() -> None:
    """Names and codes of the closed lists, a model's longest name, and the largest numbers that a log takes."""
    most, key = 2**53 - 1, X25519PrivateKey.generate()
    facts = {"status": 599, "code": max(PROBLEMS, key=len), "param": max(NAMES, key=len), "model": "m" * 64,
             "finish": "content_filter", "prompt_tokens": most, "completion_tokens": most, "duration_us": most,
             "first_token_us": most, "receipt": False, "key_sha256": "0" * 64}
    sealed = seal_outcome(facts, key.public_key().public_bytes_raw(), "r")
    assert OUTCOME_NBYTES == len(sealed)
    assert facts == json.loads(SUITE.decrypt(sealed, key, OUTCOME_INFO + b"r"))


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The auditor's private key."""
    path = tmp_path_factory.mktemp("auditor") / "key.pem"
    path.write_bytes(X25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, private: Path) -> Iterator[Server]:
    """A server whose model says one text."""
    folder = tmp_path_factory.mktemp("hidden")
    file = folder / "plain.gguf"
    file.write_bytes(talking_models.model("It is as you say.", TEMPLATE))
    public = subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-outform", "DER"], check=True,
                            capture_output=True).stdout[-32:]
    policy = write_policy(folder, {"plain": file}, schema=2, listeners=LISTENER, limits=LIMITS, audit=AUDIT,
                          privacy=PRIVACY.format(key=public.hex()), model="context_length = 512")
    running = Server(policy, [file]).wait_ready()
    yield running
    running.stop()


def _records(server: Server, seen: Seen) -> list[dict[str, Any]]:
    return [each for each in server.audit() if each.get("request") == seen.headers["x-request-id"]]


def _in_first_class(server: Server, more: dict[str, Any], *, stream: bool, receipt: bool = False) -> Seen:
    """An answer of the first class: whether it came in time is up to the machine."""
    headers = {"appliance-receipt": "1"} if receipt else {}
    for _ in range(ATTEMPTS):
        seen = tap.post(server.url, CHAT, {**PLAIN, **more, "stream": stream}, authorization=f"Bearer {KEY}", **headers)
        if _records(server, seen)[-1]["duration_us"] == FIRST_CLASS:
            return seen
    pytest.fail("never at the first multiple")


@pytest.fixture(scope="module")
def answers(server: Server) -> dict[tuple[str, bool], Seen]:
    """An answer of each kind, streamed and whole."""
    asked = [(name, stream) for name in KINDS for stream in (True, False)]
    with ThreadPoolExecutor(len(asked)) as pool:
        found = [pool.submit(_in_first_class, server, KINDS[name][0], stream=stream) for name, stream in asked]
    return {each: seen.result() for each, seen in zip(asked, found, strict=True)}


@pytest.mark.parametrize("stream", [True, False])
def test_records_are_the_same_in_form_size_and_value(server: Server, answers: dict[tuple[str, bool], Seen],
                                                     stream: bool) -> None:
    """Whatever was asked for, and whatever came of it. None says what is not so: no refusal shows as an answer."""
    forms = {}
    for (name, streamed), seen in answers.items():
        if streamed == stream:
            lines = [{key: value for key, value in each.items() if key not in PLACED}
                     for each in _records(server, seen)]
            forms[name] = [(sorted(each), len(json.dumps(each)), {key: value for key, value in each.items()
                                                                  if key not in RANDOM}) for each in lines]
    assert ["stream.started"] * stream + ["request.ended"] == [each["event"] for _, _, each in forms["answered"]]
    assert all(form == forms["answered"] for form in forms.values()), forms
    assert not {"code", "status", "finish", "model", "param"} & set(forms["unknown"][-1][0])


def test_the_auditor_reads_how_each_ended(server: Server, answers: dict[tuple[str, bool], Seen], private: Path,
                                          capsys: pytest.CaptureFixture[str]) -> None:
    """Code, status, finish, model and exact counts, by the key that the policy names."""
    assert 0 == main(["audit", "detail", str(server.folder / "audit.jsonl"), "--auditor-key", str(private)])
    told = {each["request"]: each for each in map(json.loads, capsys.readouterr().out.splitlines())}
    for (name, _), seen in answers.items():
        found = told[seen.headers["x-request-id"]]
        assert KINDS[name][1] == {key: found[key] for key in KINDS[name][1]}, name
        assert ("code" in found) != ("finish" in found), name


def test_receipts_are_the_same_in_form_and_size(server: Server) -> None:
    """Each verifies, and says neither how its answer ended, nor what came from a cache."""
    asked = [each for name, (each, _) in KINDS.items() if name not in ("unknown", "wrong")]
    with ThreadPoolExecutor(4) as pool:
        seen = list(pool.map(lambda more: _in_first_class(server, more, stream=False, receipt=True), asked))
    key = bytes.fromhex(server.audit()[0]["audit_key_ed25519"])
    leaves = {_leaf(line) for line in (server.folder / "audit.jsonl").read_bytes().splitlines()}
    forms = set()
    for each in seen:
        taken = receipts.take(each.body)
        receipt, checked = receipts.verify(taken, ReceiptDemands(key))
        assert {"signature", "token", "answer"} <= set(checked)
        said = json.loads(base64.b64decode(taken.envelope["payload"]))
        assert ("appliance/receipt/v3", {"digest", "streamed"}) == (said["type"], set(said["answer"]))
        assert "cached" not in said["tokens"]
        assert receipt.record.leaf in leaves
        kept = {name: value for name, value in said.items() if name not in ("request", "record", "time")}
        kept["answer"] = said["answer"]["streamed"]
        kept["tokens"] = {name: value for name, value in said["tokens"].items() if name != "digest"}
        kept["sampling"] = {name: value for name, value in said["sampling"].items() if name != "digest"}
        forms.add((json.dumps(kept), len(taken.envelope["payload"]), len(taken.token or ""), len(taken.sealed or "")))
    assert 1 == len(forms), forms


def _leaf(line: bytes) -> str:
    return hashlib.sha256(b"\0" + line).hexdigest()
