"""Receipts by a server: each API, streamed and whole, with tools and constraints; verified, replayed, altered."""

from __future__ import annotations

import base64
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from appliance.auditor import receipts, replay
from appliance.auditor.examine import examine
from appliance.auditor.held import read
from appliance.auditor.receipts import KeptReceipt, ReceiptDemands
from appliance.cli.main import main
from appliance.codec.canonical import canonical
from appliance.errors import NoteError
from appliance.policy import load
from appliance.receipts import envelopes
from appliance.receipts.statement import Receipt
from appliance.transparency.tree import leaf_hash
from tests.support import synthetic
from tests.support.engines import synthetic_model
from tests.support.server import OTHER_KEY, Server, write_policy

ROOT = Path(__file__).parents[2]
CANARY = "xyzzy-canary-7741"
ASKING = {"appliance-receipt": "1"}
MESSAGES = [{"role": "user", "content": f"say {CANARY}"}]
TOOL = {"type": "function", "function": {"name": "look", "strict": True, "parameters": {
    "type": "object", "properties": {"at": {"enum": ["a", "b"]}}, "required": ["at"], "additionalProperties": False}}}
TEMPLATE = (  # calls as Hermes does, in few words: the plain engine takes their number squared
    "{% for message in messages %}[{{ message.role }}]{{ message.content or '' }}{% for call in message.tool_calls or "
    "[] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}{% endfor %}{% if tools %}{{ tools | tojson }}"
    "{% endif %}[assistant]")
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "completion": ("/v1/completions", {
        "prompt": f"{CANARY} once", "max_tokens": 9, "temperature": 0.9, "seed": 2**63 - 3}),
    "ended": ("/v1/completions", {
        "prompt": f"{CANARY} once", "max_tokens": 9, "temperature": 1.1, "seed": 4, "min_tokens": 3,
        "stop_token_ids": list(range(60, 200))}),
    "endless": ("/v1/chat/completions", {
        "messages": MESSAGES, "max_tokens": 7, "seed": 4, "ignore_eos": True, "logit_bias": {"2": 50}}),
    "healed": ("/v1/completions", {
        "prompt": f"{CANARY} once upon", "max_tokens": 9, "temperature": 0.7, "seed": 5, "token_healing": 2,
        "echo": True}),
    "chat": ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 12, "temperature": 0}),
    "sampled": ("/v1/chat/completions", {
        "messages": MESSAGES, "max_tokens": 12, "temperature": 1.3, "top_p": 0.9, "logit_bias": {"5": 1.5},
        "frequency_penalty": 0.3, "stop": ["zzz"]}),
    "constrained": ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 40, "response_format": {
        "type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": {
            "type": "object", "properties": {"a": {"enum": [1, 2, 3]}}, "required": ["a"],
            "additionalProperties": False}}}}),
    "tools": ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 60, "tools": [TOOL],
                                       "tool_choice": "required"}),
    "responses": ("/v1/responses", {"input": f"say {CANARY}", "max_output_tokens": 12}),
    "messages": ("/v1/messages", {"messages": MESSAGES, "max_tokens": 12}),
}


class Served:
    """A server's folder after it ended, with each answer as it came."""

    def __init__(self, folder: Path, answers: dict[str, tuple[bytes, bytes]]) -> None:
        self.folder, self.answers = folder, answers
        self.log = (folder / "audit.jsonl").read_bytes().splitlines(keepends=True)
        loaded = load(folder / "policy.hcl")
        self.expected = ReceiptDemands(bytes.fromhex(json.loads(self.log[0])["audit_key_ed25519"]), loaded.digest.hex(),
                                 loaded.policy)

    def verified(self, name: str) -> tuple[KeptReceipt, Receipt]:
        """A receipt that holds, with its answer and its request."""
        request, answer = self.answers[name]
        taken = receipts.take(answer)
        receipt, checked = receipts.verify(taken, self.expected, request=request)
        assert {"signature", "token", "answer", "request", "policy", "model"} <= set(checked)
        return taken, receipt


def _served(folder: Path, **policy: Any) -> Served:
    model = folder / "tiny.gguf"
    model.write_bytes(synthetic.model(synthetic.VARIANTS["Q8_0"], 4096))
    path = write_policy(folder, {"tiny": model}, schema=2, audit="receipts = true",
                        model=f"chat_template = {json.dumps(TEMPLATE)}", **policy)
    server, answers = Server(path, [model]).wait_ready(), {}
    try:
        with server.http() as client:
            for name, (endpoint, body) in CASES.items():
                for stream in (False, True):
                    answer = client.post(endpoint, json={"model": "tiny", "stream": stream, **body}, headers=ASKING)
                    assert 200 == answer.status_code, answer.text
                    answers[name + " streamed" * stream] = answer.request.content, answer.content
            plain = client.post("/v1/completions", json={"model": "tiny", "prompt": "x", "max_tokens": 2})
            assert "receipt" not in plain.json()
            assert 400 == client.post("/v1/completions", json={"model": "tiny", "prompt": "x"},
                                      headers={"appliance-receipt": "2"}).status_code
            for more, param in ((("n", 2), "n"), (("prompt", ["a", "b"]), "prompt"), (("guidance_scale", 2), None)):
                refused = client.post("/v1/completions", json={"model": "tiny", "prompt": "x", **dict([more])},
                                      headers=ASKING)
                assert (400, param or more[0]) == (refused.status_code, refused.json()["error"]["param"])
    finally:
        server.stop()
    return Served(folder, answers)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    """One answer of each kind."""
    return _served(tmp_path_factory.mktemp("receipts"))


NAMES = [name + end for name in CASES for end in ("", " streamed")]


@pytest.mark.parametrize("name", NAMES)
def test_a_receipt_holds_and_its_answer_is_computed_again(served: Served, name: str) -> None:
    """By the engine, in passes as wide as a prompt's; and by the plain engine, which shares no code with it."""
    taken, receipt = served.verified(name)
    found = replay.replay(receipt, taken.opening, served.folder / "tiny.gguf", threads=1)
    assert (None, len(receipts.tokens(taken.opening)[1])) == (found.wrong, found.tokens)
    assert (taken.opening["constraint"] is not None) == (name.split()[0] in ("constrained", "tools"))
    path = served.folder / f"{name}.json"
    path.write_text(json.dumps(replay.plain(taken.opening, found)))
    done = subprocess.run([sys.executable, ROOT / "examples/plain_engine.py", served.folder / "tiny.gguf", path],
                          capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stdout + done.stderr


def test_another_token_is_found(served: Served) -> None:
    """The receipt no longer holds; and the model says another one."""
    taken, receipt = served.verified("chat")
    for place in range(len(taken.opening["tokens"])):
        tokens = list(taken.opening["tokens"])
        tokens[place] = (tokens[place] + 1) % 64
        opening = {**taken.opening, "tokens": tokens}
        with pytest.raises(NoteError, match="tokens"):
            receipts.verify(KeptReceipt(taken.envelope, taken.token, opening, None), served.expected)
        found = replay.replay(receipt, opening, served.folder / "tiny.gguf", threads=1)
        assert found.wrong == (place, taken.opening["tokens"][place])


@pytest.mark.parametrize("name", ["completion", "tools streamed"])
def test_any_changed_byte_fails(served: Served, name: str) -> None:
    """Of the answer, its receipt with all that is around it, and the request."""
    request, answer = served.answers[name]
    chooser = random.Random(3)
    for place in (*chooser.sample(range(len(answer)), 200), *range(0, len(answer), 61)):
        changed = bytearray(answer)
        changed[place] ^= 1 << chooser.randrange(8)
        with pytest.raises(NoteError):
            receipts.verify(receipts.take(bytes(changed)), served.expected, request=request)
    with pytest.raises(NoteError, match="request"):
        receipts.verify(receipts.take(answer), served.expected, request=request + b" ")
    with pytest.raises(NoteError, match="no receipt"):  # a member that no receipt has
        receipts.take(answer.replace(b'"cwt":', b'"cwu":'))


@pytest.mark.parametrize(("field", "value"), [
    ("policy_sha384", "00" * 48), ("self_test_sha384", "00" * 48), ("measurement", "00" * 48),
    ("code_sha384", "00" * 48), ("key", bytes(32))])
def test_another_policy_image_or_key_fails(served: Served, field: str, value: Any) -> None:
    """Whatever an auditor expects that is not so."""
    taken, _ = served.verified("chat")
    with pytest.raises(NoteError):
        receipts.verify(taken, ReceiptDemands(**{**vars(served.expected), field: value}))


def test_public_tools_verify_a_receipt(served: Served, tmp_path: Path) -> None:
    """The steps of docs/formats/receipt.md, as they stand there: openssl, and code of ours only to take it apart."""
    answer = tmp_path / "answer.json"
    answer.write_bytes(served.answers["chat"][1])
    subprocess.run([sys.executable, "-m", "appliance", "receipt", "verify", answer, "--key", served.expected.key.hex(),
                    "--parts", tmp_path / "parts"], check=True, capture_output=True, cwd=ROOT)
    text = (ROOT / "docs/formats/receipt.md").read_text()
    steps = text.partition("```sh\n# openssl\n")[2].partition("```")[0]
    command = ["bash", "-euc", steps]
    done = subprocess.run(command, cwd=tmp_path / "parts", capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stderr
    assert "Signature Verified Successfully" in done.stdout
    _, receipt = served.verified("chat")
    assert receipt.answer.digest in done.stdout
    (tmp_path / "parts/signed.bin").write_bytes((tmp_path / "parts/signed.bin").read_bytes() + b" ")
    assert 0 != subprocess.run(command, cwd=tmp_path / "parts", capture_output=True, check=False).returncode


def test_each_receipt_proves_the_log_up_to_its_record(served: Served) -> None:
    """A log that ends before, or has another record in its place, contradicts it."""
    for name in ("completion", "tools streamed"):
        path = served.folder / "kept"
        path.write_bytes(served.answers[name][1])
        anchor, place = read(path), served.verified(name)[1].record.seq
        assert place + 1 == anchor.checkpoint.size
        assert examine(served.log, anchors=[anchor]).bad is None
        assert place == getattr(examine(served.log[:place], anchors=[anchor]).bad, "position", None)


def test_receipts_and_log_have_no_content(served: Served) -> None:
    """Neither the statement, signed in two envelopes, nor any record. Equal requests share no digest."""
    digests = set()
    for name in NAMES:
        taken, receipt = served.verified(name)
        assert CANARY.encode() not in receipt.encode()
        assert CANARY not in json.dumps(taken.envelope) + str(taken.token)
        digests |= {receipt.request.digest, receipt.answer.digest, receipt.tokens.digest, receipt.sampling.digest}
    assert 4 * len(NAMES) == len(digests)
    assert CANARY.encode() not in b"".join(served.log)
    assert all(bytes.fromhex(digest) for digest in digests)


@pytest.mark.parametrize("privacy", [
    "size_padding = \"1KiB\"",
    "timing_padding {\n first_token = \"50ms\"\n total = \"100ms\"\n }\n size_padding = \"512B\""])
def test_padded_answers_have_receipts(tmp_path: Path, privacy: str) -> None:
    """Answers have the sizes that the policy pads to, and their receipts hold."""
    served = _served(tmp_path, privacy=privacy)
    multiple = 1024 if "1KiB" in privacy else 512
    for name in NAMES:
        served.verified(name)
        assert 0 == len(served.answers[name][1]) % multiple


@pytest.mark.parametrize("privacy", [
    "token_count_rounding = 64", "redaction {\n pattern \"c\" {\n regex = \"canary\"\n }\n }"])
def test_tokens_that_would_tell_too_much_are_left_out(tmp_path: Path, privacy: str) -> None:
    """The receipt holds without them, and its client cannot replay it; the policy's auditor can, and nobody else."""
    private = X25519PrivateKey.generate()
    key = private.public_key().public_bytes_raw().hex()
    served = _served(tmp_path, privacy=f'{privacy}\n auditor_key = "x25519:{key}"')
    for name in NAMES:
        taken, receipt = served.verified(name)
        assert {"salts"} == set(taken.opening)
        with pytest.raises(NoteError, match="no tokens"):
            replay.replay(receipt, taken.opening, served.folder / "tiny.gguf")
        with pytest.raises(NoteError, match="does not open"):
            receipts.unsealed(taken, X25519PrivateKey.generate())
        request, _answer = served.answers[name]
        told = receipts.unsealed(taken, private)
        _, checked = receipts.verify(told, served.expected, request=request)
        assert {"tokens", "settings", "answer"} <= set(checked)
        found = replay.replay(receipt, told.opening, served.folder / "tiny.gguf", threads=1)
        assert (None, len(receipts.tokens(told.opening)[1])) == (found.wrong, found.tokens)


LATER = 'receipts = true\n  receipt_position = "later"\n  checkpoint_interval = "1s"'


def test_a_receipt_without_a_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It tells nothing of how many records others wrote: two receipts, with many requests of another tenant between or
    none, have the same members and sizes. The log proves its record later; a log without it contradicts it."""
    model = tmp_path / "tiny.gguf"
    model.write_bytes(synthetic_model("Q8_0"))
    server, answers = Server(write_policy(tmp_path, {"tiny": model}, schema=2, audit=LATER), [model]).wait_ready(), []
    body = {"model": "tiny", "prompt": "once", "max_tokens": 2, "seed": 1}
    try:
        for others in (0, 0, 20):
            for _ in range(others):
                server.client(OTHER_KEY).completions.create(model="tiny", prompt="x", max_tokens=1)
            with server.http() as client:
                answers.append(client.post("/v1/completions", json=body, headers=ASKING).content)
    finally:
        server.stop()
    said = [json.loads(base64.b64decode(receipts.take(each).envelope["payload"])) for each in answers]
    for each in said:
        assert "appliance/receipt/v2" == each["type"]
        assert {"log", "epoch", "boot", "leaf"} == set(each["record"])
        assert not {"checkpoint", "path", "seq"} & set(each)
    assert 1 == len({tuple(map(len, (base64.b64decode(receipts.take(each).envelope["payload"]),
                                     str(receipts.take(each).token)))) for each in answers})
    log, key = tmp_path / "audit.jsonl", json.loads((tmp_path / "audit.jsonl").read_bytes().splitlines()[0])
    files = []
    for number, each in enumerate(answers):
        files.append(tmp_path / f"answer-{number}.json")
        files[-1].write_bytes(each)
    words = ["--key", key["audit_key_ed25519"], "--policy", str(tmp_path / "policy.hcl")]
    assert 0 == main(["audit", "export", str(log), "--receipt", str(files[2])])
    bundle = tmp_path / "bundle.json"
    bundle.write_text(capsys.readouterr().out)
    assert 0 == main(["receipt", "verify", str(files[2]), "--bundle", str(bundle), *words, "--json"])
    checked = json.loads(capsys.readouterr().out)["checked"]
    assert {"signature", "token", "answer", "record under the bundle's checkpoint"} <= set(checked)
    assert 0 == main(["receipt", "verify", str(files[0]), *words])
    assert "record       not said of log" in capsys.readouterr().out
    assert 1 == main(["receipt", "verify", str(files[0]), "--bundle", str(bundle), *words])
    assert "other records than its own" in capsys.readouterr().out
    with pytest.raises(NoteError, match="has no checkpoint"):
        read(files[0])
    lines = log.read_bytes().splitlines(keepends=True)
    at = next(place for place, line in enumerate(lines) if leaf_hash(line[:-1]).hex() == said[1]["record"]["leaf"])
    log.write_bytes(b"".join(lines[:at]))
    assert 2 == main(["audit", "export", str(log), "--receipt", str(files[1])])


@pytest.mark.parametrize("change", [
    {"type": "appliance/receipt/v1"}, {"record": {"seq": 4}}, {"checkpoint": "x"}, {"path": []}, {"checkpoint": None}])
def test_a_version_has_all_of_its_place_or_nothing(served: Served, change: dict[str, Any]) -> None:
    """A statement between the two versions is refused."""
    whole = served.verified("completion")[1].model_dump(mode="json")
    bare = {name: value for name, value in whole.items() if name not in ("checkpoint", "path")}
    bare |= {"type": "appliance/receipt/v2", "record": {k: v for k, v in whole["record"].items() if k != "seq"}}
    assert envelopes.statement(canonical(bare)).encode() == canonical(bare)
    mixed = {**bare, **change, "record": {**bare["record"], **change.get("record", {})}}
    with pytest.raises(NoteError, match="not in form"):
        envelopes.statement(canonical(mixed))


def test_a_policy_without_receipts_says_so(tmp_path: Path) -> None:
    """Whoever asks for one is refused, not served without."""
    model = tmp_path / "tiny.gguf"
    model.write_bytes(synthetic_model("Q8_0"))
    server = Server(write_policy(tmp_path, {"tiny": model}, schema=2), [model]).wait_ready()
    try:
        with server.http() as client:
            answer = client.post("/v1/completions", json={"model": "tiny", "prompt": "x"}, headers=ASKING)
            assert (400, "unsupported_parameter") == (answer.status_code, answer.json()["error"]["code"])
    finally:
        server.stop()


def test_a_longer_context_stands_in_the_receipt(tmp_path: Path) -> None:
    """An answer under a policy's `rope` is computed again as it was, by the engine and by the plain one. It names
    an access pattern that leaks."""
    model = tmp_path / "tiny.gguf"
    model.write_bytes(synthetic.model(synthetic.VARIANTS["Q8_0"], 128))
    path = write_policy(tmp_path, {"tiny": model}, schema=2, audit="receipts = true", limits="prompt_tokens = 300",
                        model='context_length = 400\naccess_pattern = "leaks"\nrope {\n    factor = 4.0\n  }')
    server = Server(path, [model]).wait_ready()
    try:
        with server.http() as client:
            answer = client.post("/v1/completions", json={"model": "tiny", "prompt": "ab" * 70, "max_tokens": 9},
                                 headers=ASKING)
            assert 200 == answer.status_code, answer.text
    finally:
        server.stop()
    taken, receipt = Served(tmp_path, {"x": (answer.request.content, answer.content)}).verified("x")
    assert (4.0, 128) == (receipt.sampling.settings["rope_factor"], receipt.sampling.settings["rope_original_context"])
    assert 1 == receipt.sampling.settings["access_pattern_leaks"]
    found = replay.replay(receipt, taken.opening, model, threads=1)
    assert found.wrong is None
    said = tmp_path / "plain.json"
    said.write_text(json.dumps(replay.plain(taken.opening, found)))
    done = subprocess.run([sys.executable, ROOT / "examples/plain_engine.py", model, said, "--context", "400"],
                          capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stdout + done.stderr
