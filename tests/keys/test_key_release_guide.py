"""The guide to key release, followed command by command; what it says of certificates, of the broker's start and of its
log, and of what stops a boot before the self-test."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from appliance.attestation.x509.walks import root_of
from appliance.cli.main import parser_of
from appliance.errors import ForgedEvidenceError, ModelKeyError
from appliance.keys.release.https import Destination, check_chain
from tests.support import guides, server, waiting, written
from tests.support.server import Server

ROOT = Path(__file__).parents[2]
PAGE = "key-release.md"
NOT_HERE = ("appliance image ", "swtpm ", "appliance model tpm-seal ")  # need an image, or a TPM: words are checked
STARTED = ("python -m examples.broker ", "appliance serve ")
POLICY = """
appliance {
  name   = "guide"
  schema = 2
}
tee { platforms = ["simulated"] }
%s
tenants {
  tenant "user" {
    models         = ["demo"]
    api_key_sha256 = ["%s"]
  }
}
service {
  operator_may_set = ["listen_port", "log_sink"]
  listen "api" {
    kind = "tcp"
    port = 8080
  }
}
"""


def _run(command: str, folder: Path) -> str:
    """What a command line prints; `appliance` is this interpreter's."""
    own = command.replace("appliance ", f"{shlex.quote(sys.executable)} -m appliance ", 1)
    done = subprocess.run(["bash", "-ec", own if command.startswith("appliance ") else command], cwd=folder,
                          capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert 0 == done.returncode, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


class Followed:
    """A folder in which the guide's commands are run, for a name and a port of this machine."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder, self.port, self.said = folder, _free_port(), dict[str, str]()
        (folder / "demo.gguf").write_bytes(model.read_bytes())

    def local(self, text: str) -> str:
        """The guide's text with this machine's name and port."""
        return text.replace("keys.example.org", "localhost").replace(":8443", f":{self.port}")

    def run(self, command: str) -> None:
        """One of its commands, as it stands."""
        self.said[command] = _run(self.local(command), self.folder)

    def write_policy(self) -> None:
        """`deployment.hcl`: the guide's block, each … from what was printed, in a simulated policy."""
        block = self.local(guides.blocks(PAGE, "hcl")[0])
        seal = next(text for command, text in self.said.items() if " seal " in command)
        root = next(text for command, text in self.said.items() if command.endswith("sha256sum"))
        for name in ("sealed_header_sha256", "sha256"):
            pin = re.search(rf'^\s*{name}\s*=\s*"([0-9a-f]{{64}})"', seal, re.MULTILINE)
            assert pin is not None, seal
            block = re.sub(rf'(\s{name}\s*= )"…"', rf'\1"{pin[1]}"', block)
        block = block.replace('root_sha256 = "…"', f'root_sha256 = "{root.split()[0]}"')
        assert "…" not in block
        self.policy.write_text(POLICY % (block, server.sha256(server.KEY)))

    def write_broker(self) -> None:
        """`broker.toml`: the guide's, but for the platform, which has no measurements."""
        text = guides.blocks(PAGE, "toml")[0].replace("8443", str(self.port))
        text = re.sub(r"^(host +=) .*", r'\1 "127.0.0.1"', text, flags=re.MULTILINE)
        text = re.sub(r"^(measurements|collateral) .*\n", "", text, flags=re.MULTILINE)
        text = text.replace('["sev-snp"]', '["simulated"]\nproves_nothing = true')
        (self.folder / "broker.toml").write_text(text)

    @property
    def policy(self) -> Path:
        """The policy's file."""
        return self.folder / "deployment.hcl"

    @contextlib.contextmanager
    def broker(self) -> Iterator[Path]:
        """The broker, started as the guide says; its log."""
        log = self.folder / "broker.log"
        with log.open("wb") as out, subprocess.Popen([sys.executable, "-m", "examples.broker", "broker.toml"],
                                                     cwd=self.folder, stderr=out, stdout=out,
                                                     env={**os.environ, "PYTHONPATH": str(ROOT)}) as process:
            try:
                waiting.until(lambda: "listening at" in log.read_text() or process.poll() is not None,
                              "broker that listens", lambda: waiting.processor_time(process.pid))
                yield log
            finally:
                process.terminate()


def _log(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in written.lines(path) if line.startswith("{")]


def _prepared(folder: Path, model: Path) -> Followed:
    """Steps 1 to 3 and the broker's file."""
    followed = Followed(folder, model)
    for command in guides.section(PAGE, "appliance model key", "appliance check"):
        followed.run(command)
    followed.write_policy()
    followed.write_broker()
    return followed


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Followed:
    """One for all tests that break nothing of it."""
    return _prepared(tmp_path_factory.mktemp("guide"), tiny_model)


@pytest.mark.slow
def test_the_guide_is_followed_to_the_letter(prepared: Followed) -> None:
    """Each command on the page, in its order: run, or, where it needs an image or a TPM, read by the command line. The
    key is released, the model answers, and the broker's log has one line, of that."""
    commands = guides.commands(PAGE)
    ahead = commands.index("appliance check deployment.hcl")
    assert list(prepared.said) == commands[:ahead]
    started = []
    for command in commands[ahead:]:
        if command.startswith(NOT_HERE):
            if command.startswith("appliance") and "…" not in command:
                parser_of(command.split()[1]).parse_args(shlex.split(command)[1:])
        elif command.startswith(STARTED):
            started.append(command)
        else:
            prepared.run(command)
    assert ["python -m examples.broker broker.toml", "appliance serve deployment.hcl"] == started
    with prepared.broker() as log:
        running = Server(prepared.policy, []).wait_ready()
        try:
            with running.http() as http:
                answer = http.post("/v1/completions", json={"model": "demo", "prompt": "a", "max_tokens": 2})
            assert 200 == answer.status_code, answer.text
        finally:
            assert 0 == running.stop()
        assert ["released"] == [each["event"] for each in _log(log)], log.read_text()


def _broken(folder: Path, prepared: Followed, what: str) -> Followed:
    """A copy whose certificates are wrong in one way."""
    broken = Followed.__new__(Followed)
    broken.folder, broken.port, broken.said = folder, _free_port(), {}
    for each in prepared.folder.iterdir():
        if each.is_file():
            (folder / each.name).write_bytes(each.read_bytes())
            (folder / each.name).chmod(each.stat().st_mode)
    for name in ("deployment.hcl", "broker.toml"):
        path = folder / name
        path.write_text(path.read_text().replace(str(prepared.port), str(broken.port)))
    if what == "root":
        (folder / "server.pem").write_bytes((folder / "leaf.pem").read_bytes())
    elif what == "name":
        broken.policy.write_text(broken.policy.read_text().replace("https://localhost", "https://127.0.0.1"))
    elif what == "pin":
        broken.policy.write_text(re.sub('root_sha256 = "[0-9a-f]{64}"', f'root_sha256 = "{"ab" * 32}"',
                                        broken.policy.read_text()))
    elif what == "key":
        (folder / "server.key").write_bytes((folder / "root.key").read_bytes())
    elif what == "ek_roots":
        (folder / "makers").mkdir()
        (folder / "broker.toml").write_text((folder / "broker.toml").read_text() + 'ek_roots = "makers"\n')
    return broken


@pytest.mark.parametrize(("what", "words"), [
    ("root", "none of its issuers' certificates has the SHA-256"), ("name", "its certificate does not verify"),
    ("pin", "none of its issuers' certificates has the SHA-256 abab"),
    ("key", "it is not the key of the first certificate"),
    ("ek_roots", "makers"),
])
def test_a_broker_that_nobody_would_trust_does_not_start(what: str, words: str, tmp_path: Path, prepared: Followed
                                                         ) -> None:
    """It says which policy's appliances would hang up, or which file has not what it should have."""
    broken = _broken(tmp_path, prepared, what)
    done = subprocess.run([sys.executable, "-m", "examples.broker", "broker.toml"], cwd=tmp_path, capture_output=True,
                          text=True, check=False, timeout=600, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert (2, True) == (done.returncode, words in done.stderr), done.stderr
    assert what not in ("root", "name", "pin") or str(broken.policy.name) in done.stderr


def test_what_cannot_be_trusted_stops_the_boot_before_the_self_test(tmp_path: Path, prepared: Followed) -> None:
    """The boot ends while it hardens itself; the broker's log tells of who hung up, of a handshake that failed and of
    requests that it refused."""
    other = _broken(tmp_path, prepared, "pin")
    with prepared.broker() as log:
        other.policy.write_text(other.policy.read_text().replace(str(other.port), str(prepared.port)))
        with pytest.raises(AssertionError) as caught:
            Server(other.policy, []).wait_ready()
        told = str(caught.value)
        assert "boot stopped at step hardening: key release: the key broker at https://localhost" in told
        assert "has the SHA-256 abab" in told
        assert '"step": "self-test"' not in told
        waiting.until(lambda: ["silent"] == [each["event"] for each in _log(log)], "a line of the peer that hung up")
        with socket.create_connection(("127.0.0.1", prepared.port)) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert b"HTTP" not in plain.recv(4096)
        subprocess.run(["curl", "--silent", "--cacert", prepared.folder / "root.pem", "--data", '{"version":"9"}',
                        f"https://localhost:{prepared.port}/kbs/v0/auth"], check=True, capture_output=True)
        waiting.until(lambda: 3 == len(_log(log)), "a line of each")
    events = _log(log)
    assert ["silent", "no-handshake", "refused"] == [each["event"] for each in events]
    assert {"127.0.0.1"} == {each["peer"] for each in events}
    assert "401: version is not 0.4.0, or tee is not known here" == events[-1]["reason"]


def test_a_broker_that_is_not_there_yet_is_asked_again(tmp_path: Path, prepared: Followed) -> None:
    """The console says so before the self-test, and a broker that comes meanwhile is found."""
    later = _broken(tmp_path, prepared, "")
    running = Server(later.policy, [])
    try:
        waiting.until(lambda: "it is asked again after the self-test" in running.text("stderr"), "words on the console",
                      lambda: waiting.processor_time(running.process.pid))
        with later.broker():
            running.wait_ready()
    finally:
        running.stop()
    assert f"the key broker at https://localhost:{later.port} does not answer" in running.text("stderr")


class Authority:
    """Certificates with just the extensions that a test gives them."""

    def __init__(self) -> None:
        self.keys = {name: ec.generate_private_key(ec.SECP256R1()) for name in ("root", "middle", "leaf")}

    def made(self, name: str, issuer: str, *extensions: x509.ExtensionType) -> bytes:
        """A certificate, in DER."""
        now = datetime.now(UTC)
        names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in (name, issuer)]
        builder = x509.CertificateBuilder(
            issuer_name=names[1], subject_name=names[0], public_key=self.keys[name].public_key(),
            serial_number=x509.random_serial_number(), not_valid_before=now - timedelta(days=1),
            not_valid_after=now + timedelta(days=1))
        for each in extensions:
            builder = builder.add_extension(each, critical=isinstance(each, x509.BasicConstraints | x509.KeyUsage))
        return builder.sign(self.keys[issuer], hashes.SHA256()).public_bytes(Encoding.DER)


def _usage(*, sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(digital_signature=not sign, content_commitment=False, key_encipherment=False,
                         data_encipherment=False, key_agreement=False, key_cert_sign=sign, crl_sign=sign,
                         encipher_only=False, decipher_only=False)


def _climbed(chain: list[bytes]) -> str:
    """The root that makers of TPMs, publishers and timestamp authorities are found by."""
    leaf, *others = map(x509.load_der_x509_certificate, chain)
    return root_of(leaf, others, at=datetime.now(UTC), roots={hashlib.sha256(chain[-1]).hexdigest(): "own"})


def test_an_issuer_whose_key_usage_says_otherwise_signs_nothing() -> None:
    """For those roots, too: an absent key usage denies nothing, and one that is there counts."""
    made = Authority()
    chain = [made.made("leaf", "middle", NAME), made.made("middle", "root", CA, _usage(sign=False)),
             made.made("root", "root", CA)]
    with pytest.raises(ForgedEvidenceError, match="its key may not sign certificates"):
        _climbed(chain)


CA, NO_CA = x509.BasicConstraints(ca=True, path_length=None), x509.BasicConstraints(ca=False, path_length=None)
NAME = x509.SubjectAlternativeName([x509.DNSName("keys.example.org")])


@pytest.mark.parametrize(("root", "middle", "leaf", "trusted"), [
    ([CA], [CA], [NAME], True),  # no key usage, and no key identifiers: RFC 5280, 6.1 demands neither
    ([CA, _usage(sign=True)], [CA, _usage(sign=True)], [NAME, _usage(sign=False)], True),
    ([CA], [CA, _usage(sign=False)], [NAME], False),  # 6.1.4 (n)
    ([CA], [NO_CA], [NAME], False),  # 6.1.4 (k)
    ([CA], [], [NAME], False),
    ([CA], [x509.BasicConstraints(ca=True, path_length=0)], [NAME], True),
    ([x509.BasicConstraints(ca=True, path_length=0)], [CA], [NAME], False),  # 6.1.4 (m), as an anchor's own word
    ([CA], [CA], [], False),  # no name
    ([CA], [CA], [NAME, x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH])], False),
    ([CA], [CA], [NAME, CA], False),
])
def test_extensions(root: list[Any], middle: list[Any], leaf: list[Any], trusted: bool) -> None:
    """What RFC 5280's path validation demands of a chain is demanded, and what TLS demands of a server's leaf."""
    made = Authority()
    chain = [made.made("leaf", "middle", *leaf), made.made("middle", "root", *middle), made.made("root", "root", *root)]
    address = Destination("keys.example.org", 8443, "", hashlib.sha256(chain[-1]).hexdigest())
    if trusted:
        check_chain(chain, address, datetime.now(UTC))
        assert "own" == _climbed(chain)
        return
    with pytest.raises(ModelKeyError) as caught:
        check_chain(chain, address, datetime.now(UTC))
    assert "key-broker-untrusted" == caught.value.code
