"""An auditor's day, to the letter: the page's own commands, in one shell, against a simulated service."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from appliance.cli.main import main
from appliance.imaging.papers import releases
from appliance.kernels.runtime import targets
from appliance.policy import load
from tests.support import packs, shell_pages
from tests.support.server import AUDITOR_KEY, KEY, Server, write_policy

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/guides/auditors-day.md"
RA_TLS = 'listen "api" {\n    kind = "ra-tls"\n    port = 8443\n  }'
UNPROVED = {"appliance verify": 5, "appliance evidence": 1}
# As the page says: `connect` has to be told that simulated evidence will do.
SIMULATED = """appliance() {
    if [ "$1" = connect ]; then exec appliance "$@" --accept simulated; else command appliance "$@"; fi
}"""


def _papers(folder: Path, policy: Path) -> None:
    """What the operator and the builder have beside the running service."""
    shutil.copy(policy, folder / "deployment.hcl")
    loaded = load(folder / "deployment.hcl")
    packs._image(folder, loaded)
    shutil.rmtree(folder / "releases")
    _release(folder, loaded.digest.hex())
    for name in ("sbom.cdx.json", "provenance.intoto.jsonl"):
        (folder / "OUT").mkdir(exist_ok=True)
        (folder / name).rename(folder / "OUT" / name)
    (folder / "demo.sigstore").rename(folder / "MODEL.sigstore")
    (folder / "collateral").mkdir()
    (folder / "builder.pub").write_bytes(packs.BUILDER.public_key().public_bytes(
        Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    (folder / "request.json").write_text(json.dumps({
        "model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}))
    (folder / "opinion.txt").write_text("Opinion: none.\n")


def _release(folder: Path, policy: str) -> None:
    measured = hashlib.sha384((folder / "measurements.json").read_bytes()).hexdigest()
    releases.append(folder / "releases", [
        ("release.measurements", {"sha384": measured, "version": "0.1.0"}),
        ("release.policy", {"sha384": policy, "name": "test"})], packs.BUILDER, datetime.now(UTC) - timedelta(days=1))


def _port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.mark.slow
def test_the_days_commands_do_what_the_page_says(tmp_path: Path, tiny_model: Path,
                                                 capsys: pytest.CaptureFixture[str]) -> None:
    """Each ends with 0, but for those that say that nothing simulated is verified. The evidence answers the auditor's
    nonce; receipt, checkpoint and log agree; the answer is computed again."""
    day = tmp_path / "day"
    day.mkdir()
    (tmp_path / "server").mkdir()
    policy = write_policy(tmp_path / "server", {"tiny": tiny_model}, schema=2, listeners=RA_TLS,
                          audit='\nreceipts = true\ncheckpoint_interval = "1s"\n')
    _papers(day, policy)
    server = Server(policy, [tiny_model], log=day / "audit.jsonl").wait_ready()
    try:
        done = shell_pages.run(PAGE, day, {
            "URL": server.url, "PROXY": f"127.0.0.1:{_port()}", "MODEL": str(tiny_model), "KEY": KEY,
            "AUDITOR_API_KEY": AUDITOR_KEY, "AT": f"{datetime.now(UTC) + timedelta(minutes=5):%Y-%m-%dT%H:%M:%SZ}"},
            {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}, SIMULATED)
    finally:
        server.stop()
    for each in done:
        expected = next((code for word, code in UNPROVED.items() if each.command.startswith(word)), 0)
        assert expected == each.code, f"{each.command}\n{each.out}\n{each.err}"
    found = json.loads((day / "findings.json").read_text())
    assert [] == found["warnings"]
    assert [] == [name for name, each in found["claims"].items() if each["outcome"] == "fails"]
    held = {name for name, each in found["claims"].items() if each["outcome"] == "holds"}
    assert {"policy-expected", "measurements-signed", "release-recent", "boot-report", "log-whole", "log-held",
            "log-requests", "receipts-logged", "sbom-materials", "provenance-image"} <= held
    assert "simulated" in found["claims"]["evidence-fresh"]["detail"]
    saved = json.loads((day / "evidence.json").read_text())
    nonce = next(each for each in done if each.command.startswith("NONCE="))
    assert nonce.command in PAGE.read_text()
    assert 64 == len(saved["proof"]["nonce"])
    assert b"<!DOCTYPE html>" in (day / "own.html").read_bytes()
    assert "Signature Verified Successfully" in done[-1].out + done[-1].err
    _replayed_by_a_target(day, tiny_model, capsys)


def _replayed_by_a_target(day: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The kernels of a target that was named compute the answer again; one that this CPU cannot run is refused."""
    words = ["receipt", "replay", str(day / "answer.json"), "--evidence", str(day / "evidence.json"), "--model",
             str(model), "--json", "--target"]
    own = targets.detect().name
    assert 0 == main([*words, own])
    assert (own, None) == (lambda told: (told["target"], told["wrong"]))(json.loads(capsys.readouterr().out))
    for other in ("nonsense", "neon" if own != "neon" else "avx2"):
        assert 2 == main([*words, other])
        assert other in json.loads(capsys.readouterr().out)["reason"]


def test_every_command_of_the_page_is_run() -> None:
    """None of it stands in a block that no test reads."""
    said = shell_pages.commands(PAGE)
    for word in ("appliance verify $URL", "appliance connect", "appliance audit pack -o", "appliance audit pack verify",
                 "appliance audit verify", "appliance evidence", "appliance receipt verify", "appliance receipt replay",
                 "openssl pkeyutl -verify"):
        assert any(each.startswith(word) for each in said), word
    fenced = PAGE.read_text().count("```sh\n")
    assert len(shell_pages.blocks(PAGE)) == fenced == PAGE.read_text().count("\n```sh")
