"""`audit grown` against proofs of `audit prove`, and `audit vkey`: what others than the log's keeper need of it."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance.cli.main import main
from tests.auditor.test_own_word import LOG_ID, OURS, THEIRS, Log

ORIGIN = f"appliance/audit/{LOG_ID.hex()}"


def _hex(private: Ed25519PrivateKey) -> str:
    return private.public_key().public_bytes_raw().hex()


def _vkey(private: Ed25519PrivateKey) -> str:
    """A key after C2SP signed-note, reckoned here."""
    public = b"\x01" + private.public_key().public_bytes_raw()
    identity = hashlib.sha256(ORIGIN.encode() + b"\n" + public).digest()[:4].hex()
    return f"{ORIGIN}+{identity}+{base64.b64encode(public).decode()}"


@pytest.fixture
def grown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Log, list[str]]:
    """A log, and the words that judge its growth from one held checkpoint to another."""
    log = Log(tmp_path)
    running = log.boot(OURS, ends=False)
    old = log.hold(running, "old.txt")
    size = int(Path(old).read_text().splitlines()[1])
    for number in range(9):
        running.write("service.stopped", requests=number, refused=0)
    running.close()
    new = log.hold(running, "new.txt")
    log.path.write_bytes(log.out.getvalue())
    later = int(Path(new).read_text().splitlines()[1])
    assert 0 == main(["audit", "prove", str(log.path), "--old", str(size), "--size", str(later)])
    (tmp_path / "growth.json").write_text(capsys.readouterr().out)
    return log, ["audit", "grown", str(tmp_path / "growth.json"), "--held", old, "--later", new, "--key", _hex(OURS)]


def test_a_proof_has_its_counterpart(grown: tuple[Log, list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    """It holds between the checkpoints that it is of, and between no others."""
    log, words = grown
    assert 0 == main(words)
    assert "begins with the" in capsys.readouterr().out
    assert 0 == main([*words, "--json"])
    assert json.loads(capsys.readouterr().out)["grew"] is True
    assert 1 == main([words[0], words[1], words[2], "--held", words[6], "--later", words[4], *words[7:]])
    assert "not shown: the proof leads from" in capsys.readouterr().out
    log.boot(OURS)
    assert 1 == main([*words[:6], log.hold(log.boot(OURS), "others.txt"), *words[7:]])


@pytest.mark.parametrize("edit", ["root", "old_root", "proof"])
def test_an_altered_proof_shows_nothing(edit: str, grown: tuple[Log, list[str]],
                                        capsys: pytest.CaptureFixture[str]) -> None:
    """Another root is not the checkpoint's, and other hashes lead elsewhere."""
    place = Path(grown[1][2])
    said = json.loads(place.read_text())
    said[edit] = [each[::-1] for each in said[edit]] if edit == "proof" else "ab" * 32
    place.write_text(json.dumps(said))
    assert 1 == main(grown[1])
    assert capsys.readouterr().out.startswith("not shown: ")


@pytest.mark.parametrize("text", [
    "", "{}", "[]", '{"old": 1}', '{"old":"1","size":2,"old_root":"","root":"","proof":[]}'])
def test_what_is_no_proof_cannot_be_judged(text: str, grown: tuple[Log, list[str]],
                                           capsys: pytest.CaptureFixture[str]) -> None:
    """Nor can checkpoints that nobody vouches for."""
    Path(grown[1][2]).write_text(text)
    assert 2 == main(grown[1])
    assert "appliance audit prove" in capsys.readouterr().err
    assert 2 == main([*grown[1][:-1], _hex(THEIRS)])
    assert "no key that was named signed it" in capsys.readouterr().err


def test_a_logs_keys_are_printed_as_witnesses_read_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a log each boot's, of a checkpoint the one that signed it, which has to be named."""
    log = Log(tmp_path)
    log.boot(OURS)
    held = log.hold(log.boot(THEIRS))
    assert 0 == main(["audit", "vkey", str(log.path)])
    assert f"{_vkey(OURS)}\n{_vkey(THEIRS)}\n" == capsys.readouterr().out
    assert 0 == main(["audit", "vkey", held, "--key", _hex(THEIRS), "--json"])
    assert {"vkeys": [_vkey(THEIRS)]} == json.loads(capsys.readouterr().out)
    assert 0 == main(["audit", "vkey", str(log.path), "--key", _hex(OURS)])
    assert f"{_vkey(OURS)}\n" == capsys.readouterr().out
    for words in (["audit", "vkey", held], ["audit", "vkey", held, "--key", _hex(OURS)],
                  ["audit", "vkey", str(log.path), "--key", "ab" * 32]):
        assert 2 == main(words)
