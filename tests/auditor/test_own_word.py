"""A log that goes on behind what is held: what something from outside covers is proved, the rest is its own word."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance.audit.chain import Chain
from appliance.audit.log import AuditLog
from appliance.auditor.claims import table
from appliance.auditor.claims.case import Case
from appliance.auditor.examine import examine
from appliance.auditor.pack import gather, judge
from appliance.cli.main import main
from appliance.transparency import note
from appliance.transparency.note import COSIGNS, NoteKey
from tests.support import packs

OURS, THEIRS, WITNESS = (Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in (1, 2, 3))
WITNESS_KEY = NoteKey("w1", WITNESS.public_key().public_bytes_raw(), COSIGNS)
LOG_ID = bytes(range(16))


def _hex(private: Ed25519PrivateKey) -> str:
    return private.public_key().public_bytes_raw().hex()


class Log:
    """A log in a file, which whoever has the file goes on with."""

    def __init__(self, folder: Path) -> None:
        self.path, self.folder, self.out = folder / "audit.jsonl", folder, io.BytesIO()
        self.out.close = lambda: None  # type: ignore[method-assign]

    def boot(self, key: Ed25519PrivateKey, *, disk: bytes | None = None, records: int = 3, ends: bool = True,
             witness: bool = False) -> AuditLog:
        """A boot by a key; on a state disk it says which. `ends`: in order, with its last checkpoint."""
        chain = Chain()
        for line in self.out.getvalue().splitlines():
            chain.follow(line)
        log = AuditLog(self.out, version=3, strict=True)
        log.words.witnesses.admit(["w1"])
        log.begin(chain, key, log=LOG_ID)
        if disk is not None:
            log.write("state.opened", epoch=chain.epoch, disk=disk.hex(), records=0)
        for number in range(records):
            log.write("service.stopped", requests=number, refused=0)
        if witness and (signed := log.checkpoint()) is not None:
            line = note.sign(signed.checkpoint.text, "w1", WITNESS, when=1_800_000_000)
            log.write("audit.cosigned", witness="w1", size=signed.checkpoint.size, cosigned_at=1_800_000_000,
                      signature=line.data[8:].hex())
        if ends:
            log.close()
        self.path.write_bytes(self.out.getvalue())
        return log

    def hold(self, log: AuditLog, name: str = "held.txt") -> str:
        """Keep the head as it is now outside of the log."""
        (self.folder / name).write_bytes(log.signed().note.encode())
        return str(self.folder / name)

    def cut(self, size: int) -> None:
        """Cut the log off behind so many records."""
        kept = self.out.getvalue().splitlines(keepends=True)[:size]
        self.out.seek(0)
        self.out.truncate()
        self.out.write(b"".join(kept))

    def verify(self, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, dict[str, Any]]:
        """The exit code of `audit verify`, its text, and its JSON."""
        code = main(["audit", "verify", str(self.path), *words])
        text = capsys.readouterr().out
        assert code == main(["audit", "verify", str(self.path), *words, "--json"])
        return code, text, json.loads(capsys.readouterr().out)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def test_a_strangers_boot_is_the_logs_own_word(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    """The case as it was tried: cut behind the held checkpoint, then a boot signed by somebody else's key."""
    held = log.hold(log.boot(OURS))
    size = len(log.out.getvalue().splitlines())
    log.boot(OURS)
    log.cut(size)
    log.boot(THEIRS)
    code, text, found = log.verify(capsys, "--held", held)
    assert (3, size, held) == (code, found["proved"], found["proved_by"])
    assert found["bad"] is None
    assert {"records": found["records"] - size, "signed": found["records"] - 1, "epochs": [2],
            "keys_of_no_boot": []} == found["own_word"]
    assert f"complete and unaltered up to record {size - 1}, by {held}" in text
    assert f"the log's own word: records {size} to {found['records'] - 1}" in text
    assert f"the log's own word: epoch 2, from record {size} on, by the key {_hex(THEIRS)}" in text
    assert 1 == text.count("complete and unaltered")
    assert 3 == log.verify(capsys, "--held", held, "--key", _hex(OURS))[0]
    assert (0, found["records"] - 1) == (lambda told: (told[0], told[2]["proved"]))(
        log.verify(capsys, "--key", _hex(OURS), "--key", _hex(THEIRS)))


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("key", [OURS, THEIRS])
def test_a_boot_that_nothing_signed_is_the_logs_own_word(key: Ed25519PrivateKey, ends: bool, log: Log,
                                                         capsys: pytest.CaptureFixture[str]) -> None:
    """It may name the right key: without a checkpoint by that key anybody can write it. With one it is proved."""
    held = log.hold(log.boot(OURS))
    log.boot(key, ends=ends)
    for words in (("--held", held), ("--key", _hex(OURS)), ("--held", held, "--key", _hex(OURS))):
        code, _, found = log.verify(capsys, *words)
        genuine = key is OURS and ends
        assert (0 if genuine else 3, [] if genuine else [2]) == (code, found["own_word"]["epochs"]), words


def test_records_behind_the_last_checkpoint_are_told(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    """A log that was copied while it ran: nothing is wrong with it, and its end is its own word."""
    running = log.boot(OURS, ends=False)
    running.checkpoint()
    held = log.hold(running)
    running.write("service.stopped", requests=9, refused=9)
    log.path.write_bytes(log.out.getvalue())
    code, text, found = log.verify(capsys, "--held", held)
    assert (0, found["records"] - 1, 1) == (code, found["proved"], found["own_word"]["records"])
    assert f"the log's own word: record {found['records'] - 1}, which nothing that was named covers" in text


def test_without_anything_from_outside_all_is_its_own_word(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever has the file can write the whole of it: nothing is called proved."""
    log.boot(OURS)
    code, text, found = log.verify(capsys)
    assert (0, 0, "nothing", found["records"] - 1) == (
        code, found["proved"], found["proved_by"], found["own_word"]["signed"])
    assert "complete and unaltered" not in text
    assert "the log's own word: records 0 to" in text
    assert "--held" in text


def test_a_key_that_no_boot_has_is_told(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    """Alone, beside one that a boot has, and for a log of nothing: no script takes it for a log that is proved."""
    log.boot(OURS)
    for words, proved in ((("--key", _hex(THEIRS)), False), (("--key", _hex(OURS), "--key", _hex(THEIRS)), True)):
        code, text, found = log.verify(capsys, *words)
        assert (3, [_hex(THEIRS)], proved) == (code, found["own_word"]["keys_of_no_boot"], bool(found["proved"]))
        assert f"no boot of this log has the key {_hex(THEIRS)}" in text
    log.path.write_bytes(b"")
    assert 3 == log.verify(capsys, "--key", _hex(OURS))[0]


def test_boots_of_a_file_need_each_their_key(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    """A later boot signs over what it found in the file, which somebody may have written before it. A checkpoint that
    was held since then covers all."""
    log.boot(OURS)
    held = log.hold(log.boot(THEIRS))
    code, _, found = log.verify(capsys, "--key", _hex(THEIRS))
    assert (3, [1], found["records"] - 1) == (code, found["own_word"]["epochs"], found["proved"])
    assert 0 == log.verify(capsys, "--held", held)[0]
    assert 0 == log.verify(capsys, "--key", _hex(THEIRS), "--key", _hex(OURS))[0]


def test_a_cosignature_covers_what_it_is_of(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    """A witness holds checkpoints for everybody; a boot behind them is not covered unless its key is."""
    log.boot(OURS, witness=True)
    witness = ("--witness", f"w1={WITNESS_KEY.public.hex()}")
    code, _, found = log.verify(capsys, *witness)
    assert (0, []) == (code, found["own_word"]["epochs"])
    log.boot(OURS)
    assert 0 == log.verify(capsys, *witness)[0]
    log.boot(THEIRS)
    code, _, found = log.verify(capsys, *witness)
    assert (3, [3]) == (code, found["own_word"]["epochs"])


@pytest.mark.parametrize("first", [LOG_ID, None])
def test_on_a_state_disk_another_key_is_bad(first: bytes | None, log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    """Its key comes of the disk's secret. A first boot that ended before it said so is found by a later one."""
    log.boot(OURS, disk=first)
    size = len(log.out.getvalue().splitlines())
    log.boot(THEIRS, disk=LOG_ID)
    code, text, found = log.verify(capsys)
    assert (1, size) == (code, found["bad"]["position"])
    assert "another audit key" in text
    log.cut(size)
    log.boot(OURS, disk=LOG_ID)
    assert 0 == log.verify(capsys, "--key", _hex(OURS))[0]


def test_a_disk_beside_a_log_in_a_file_says_nothing_of_its_key(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    """Such a disk keeps sessions, and the log has another identity."""
    log.boot(OURS, disk=bytes(16))
    log.boot(THEIRS, disk=bytes(16))
    assert 0 == log.verify(capsys)[0]


def test_a_boot_whose_key_anybody_signs_by_is_bad(log: Log) -> None:
    """The neutral element of the curve as a boot's audit key."""
    log.boot(OURS)
    lines = log.out.getvalue().splitlines(keepends=True)
    lines[0] = lines[0].replace(_hex(OURS).encode(), b"01" + b"00" * 31)
    bad = examine(lines).bad
    assert bad is not None
    assert (0, True) == (bad.position, "small order" in bad.what)


def test_a_checkpoint_that_anybody_made_proves_nothing(log: Log, tmp_path: Path,
                                                       capsys: pytest.CaptureFixture[str]) -> None:
    """A held note over the right root, by a key that the log does not name: it agrees, and covers nothing."""
    head = log.boot(OURS).signed().checkpoint
    forged = note.Note(head.text, (note.sign(head.text, head.origin, THEIRS),))
    (tmp_path / "forged.txt").write_bytes(forged.encode())
    code, text, found = log.verify(capsys, "--held", str(tmp_path / "forged.txt"))
    assert (3, 0, [1]) == (code, found["proved"], found["own_word"]["epochs"])
    assert "signed by a key that no boot of this log names" in text


# Packs: the same, judged by claims.

MEMBER = "log/audit.jsonl"


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> packs.Papers:
    """A deployment's papers, with two boots on one key."""
    return packs.deployment(tmp_path_factory.mktemp("papers"), requests=8)


def _went_on(papers: packs.Papers, key: Ed25519PrivateKey, *, ends: bool = True) -> bytes:
    """The papers' log with one more boot."""
    out, chain = io.BytesIO(), Chain()
    out.close = lambda: None  # type: ignore[method-assign]
    out.write(b"".join(papers.lines))
    for line in papers.lines:
        chain.follow(line[:-1])
    log = AuditLog(out, version=3)
    log.begin(chain, key)
    log.write("boot.start", version="0.1.0", platform="sev-snp", policy_sha384=papers.policy.digest.hex())
    if ends:
        log.close()
    return out.getvalue()


@pytest.mark.parametrize(("key", "ends", "outcomes"), [
    (packs.AUDIT, True, ("holds", "holds", "holds")),
    (packs.AUDIT, False, ("not checked", "not checked", "not checked")),
    (packs.WITNESS, True, ("fails", "not checked", "not checked"))])
def test_a_pack_says_which_boot_is_not_bound(key: Ed25519PrivateKey, ends: bool, outcomes: tuple[str, str, str],
                                             papers: packs.Papers) -> None:
    """*log-attested* fails where one boot has a key that no evidence binds; what rests on that boot is not shown."""
    members = gather.members(papers.files) | {MEMBER: _went_on(papers, key, ends=ends)}
    found = table.judge(Case(members, papers.given))
    assert outcomes == tuple(found[name].outcome for name in ("log-attested", "log-whole", "log-policy"))
    if "holds" not in outcomes:
        assert re.search("epochs? 3", found["log-attested"].detail)
        assert "own word" in found["log-whole"].detail
        assert "own word" in found["log-lossless"].detail


def test_the_command_tells_a_script(papers: packs.Papers, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`audit pack verify --held --key`, as it was tried, and with a key that no boot has: exit 1, and why."""
    pack, log = tmp_path / "pack.zip", tmp_path / "audit.jsonl"
    held, key = str(papers.folder / "held.txt"), _hex(packs.AUDIT)
    log.write_bytes(_went_on(papers, packs.WITNESS))
    files = replace(papers.files, log=log)
    pack.write_bytes(judge.written(gather.members(files), papers.given)[0])
    assert 1 == main(["audit", "pack", "verify", str(pack), *papers.judging(), "--held", held, "--key", key])
    told = capsys.readouterr().out
    assert "no evidence binds the keys of epochs 3" in told
    assert "own word" in told
    pack.write_bytes(judge.written(gather.members(papers.files), papers.given)[0])
    assert 0 == main(["audit", "pack", "verify", str(pack), *papers.judging(), "--held", held, "--key", key])
    assert 1 == main(["audit", "pack", "verify", str(pack), *papers.judging(), "--key", _hex(OURS)])
    assert f"no boot of the log has the key {_hex(OURS)}" in capsys.readouterr().out


def test_checkpoints_in_a_pack_prove_nothing(papers: packs.Papers) -> None:
    """The packer may have made them a minute ago: without evidence or anything of the judge's, all is its own word."""
    members = {name: content for name, content in gather.members(papers.files).items()
               if not name.startswith(("evidence/", "policy/"))}
    found = table.judge(Case(members, papers.given))
    assert "not checked" == found["log-whole"].outcome
    assert "by the log's own word alone" in found["log-lossless"].detail
