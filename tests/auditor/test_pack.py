"""Packs: one form, every byte bound, hostile ones refused, judged again by the client alone."""

from __future__ import annotations

import functools
import html
import io
import json
import os
import random
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance import __version__
from appliance.auditor.archive import manifest, zipped
from appliance.auditor.archive.manifest import Judged
from appliance.auditor.archive.members import KINDS
from appliance.auditor.archive.zipped import Entry
from appliance.auditor.claims.case import stripped
from appliance.auditor.pack import gather, judge
from appliance.auditor.pack.gather import Files
from appliance.auditor.unsealing import KEYS_FORMAT
from appliance.cli.main import main
from appliance.errors import AuditError
from tests.fuzz import driver, pack_fuzz
from tests.support import each_verb, extent, folders, packs

ROOT = Path(__file__).parents[2]
SMALL = pack_fuzz.SMALL


@functools.cache
def _papers() -> packs.Papers:
    return packs.deployment(folders.lasting("pack"), requests=12)


@functools.cache
def _pack() -> bytes:
    return judge.written(gather.members(_papers().files), _papers().given)[0]


def _owner(data: bytes, at: int) -> str | None:
    """The member to which a byte of an archive belongs, by another reader; None in the directory."""
    archive = zipfile.ZipFile(io.BytesIO(data))
    found = None
    for each in archive.infolist():
        found = each.filename if each.header_offset <= at else found
    return found if at < archive.start_dir else None


def _altered(data: bytes, at: int, bits: int) -> str:
    changed = bytearray(data)
    changed[at] ^= bits
    with pytest.raises(AuditError) as caught:
        manifest.unpack(bytes(changed))
    assert "pack-altered" == caught.value.code
    return caught.value.summary


def test_every_single_byte_of_a_small_pack_is_bound() -> None:
    """Each byte, to another value (in the soak, to three): it is found, and in a member the member is named."""
    data = manifest.pack(SMALL, pack_fuzz.JUDGED, __version__)
    for at in range(len(data)):
        owner = _owner(data, at)
        for bits in extent.some(((1, 128, 255)[at % 3:] + (1, 128, 255)[:at % 3]), 1):
            assert (owner or "") in _altered(data, at, bits)


def test_any_byte_of_a_whole_pack_is_bound() -> None:
    """The same at some hundred places of a pack with everything in it."""
    rng = random.Random(40)
    for at in rng.sample(range(len(_pack())), 400):
        assert (_owner(_pack(), at) or "") in _altered(_pack(), at, 1 << rng.randrange(8))


def test_a_byte_of_a_members_content_is_found_and_named() -> None:
    """Also where the archive around it is whole, and was written anew by another tool."""
    for name in _genuine_members():
        out = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(_pack())) as old, zipfile.ZipFile(out, "w") as new:
            for each in old.infolist():
                content = bytearray(old.read(each))
                if each.filename == name:
                    content[len(content) // 2] ^= 1
                new.writestr(each, bytes(content))
        with pytest.raises(AuditError):
            manifest.unpack(out.getvalue())
        members = manifest.unpack(_pack())[1]
        members[name] = bytes([members[name][0] ^ 1]) + members[name][1:]
        entries = [zipped.stored(manifest.NAME, manifest.unpack(_pack())[0].encode()),
                   *(zipped.entry(each, members[each]) for each in members)]
        with pytest.raises(AuditError, match=name):
            manifest.unpack(zipped.written(entries))


def _genuine_members() -> list[str]:
    return list(manifest.unpack(_pack())[1])


def test_other_tools_open_it(tmp_path: Path) -> None:
    """Python's reader finds nothing wrong, and the same members."""
    with zipfile.ZipFile(io.BytesIO(_pack())) as archive:
        assert archive.testzip() is None
        assert ["manifest.json", *_genuine_members()] == archive.namelist()
        assert {name: archive.read(name) for name in _genuine_members()} == manifest.unpack(_pack())[1]


def test_the_same_members_give_the_same_bytes() -> None:
    """In whatever order they are given."""
    members = gather.members(_papers().files)
    assert _pack() == judge.written(dict(reversed(members.items())), _papers().given)[0]


def test_no_content_goes_in() -> None:
    """Neither a prompt nor an answer, no salt by which one could be guessed, and no key that lies beside collateral."""
    for name, content in manifest.unpack(_pack())[1].items():
        assert b"CANARY" not in content, name
        assert b"PRIVATE KEY" not in content, name
        assert b"opening" not in content or name == "report.html", name
    assert stripped(_papers().receipts[0].read_bytes()) == manifest.unpack(_pack())[1]["receipts/answer-0.json"]


@functools.cache
def _bomb() -> bytes:
    """64 MiB of nothing, packed."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(bytes(64 << 20)) + packer.flush()


def _hostile(name: str) -> bytes:
    """An archive that no packer writes."""
    first, *rest = [zipped.stored(manifest.NAME, _listing(SMALL)), *(zipped.entry(*each) for each in SMALL.items())]
    policy = rest[0].name
    return {
        "bomb": lambda: zipped.written([first, Entry(policy, 8, 0, 100, _bomb())]),
        "bomb that says so": lambda: zipped.written([first, Entry(policy, 8, zlib.crc32(bytes(64 << 20)), 64 << 20,
                                                                  _bomb())]),
        "doubled name": lambda: zipped.written([first, *rest, rest[0]]),
        "traversal": lambda: zipped.written([first, zipped.entry("../etc/passwd", b"x")]),
        "absolute": lambda: zipped.written([first, zipped.entry("/etc/passwd", b"x")]),
        "in a folder": lambda: zipped.written([first, zipped.entry("evidence/../../x", b"x")]),
        "unknown": lambda: zipped.written([first, zipped.entry("setup.exe", b"x")]),
        "without a manifest": lambda: zipped.written(rest),
        "not in the manifest": lambda: zipped.written([first, *rest, zipped.entry("receipts/b.json", b"{}")]),
        "gone": lambda: zipped.written([first, *rest[:-1]]),
        "in front": lambda: b"#!/bin/sh\n" + zipped.written([first, *rest]),
        "behind": lambda: zipped.written([first, *rest]) + b"more",
        "between": lambda: _between(zipped.written([first, *rest])),
        "not an archive": lambda: b"PK\5\6" + bytes(18),
        "empty": lambda: b"",
    }[name]()


def _listing(members: dict[str, bytes]) -> bytes:
    return manifest.unpack(manifest.pack(members, pack_fuzz.JUDGED, __version__))[0].encode()


def _between(data: bytes) -> bytes:
    """Bytes between the last entry and the directory, whose place says so."""
    start = int.from_bytes(data[-6:-2], "little")
    return data[:start] + b"hidden" + data[start:-6] + (start + 6).to_bytes(4, "little") + data[-2:]


@pytest.mark.parametrize("name", [
    "bomb", "bomb that says so", "doubled name", "traversal", "absolute", "in a folder", "unknown",
    "without a manifest", "not in the manifest", "gone", "in front", "behind", "between", "not an archive", "empty"])
def test_hostile_archives_are_refused(name: str) -> None:
    """By name of the member, and before anything large is made."""
    with pytest.raises(AuditError) as caught:
        manifest.unpack(_hostile(name))
    assert "pack-altered" == caught.value.code


def test_what_another_tool_writes_is_refused(tmp_path: Path) -> None:
    """An archive of the same members by Python's writer has times and attributes: it is not the one form."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {manifest.NAME: _listing(SMALL), **SMALL}.items():
            archive.writestr(name, content)
    with pytest.raises(AuditError, match=manifest.NAME):
        manifest.unpack(out.getvalue())


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400), st.integers(0, 2000), st.integers(0, 400))
def test_no_bytes_are_taken_for_a_pack(data: bytes, at: int, cut: int) -> None:
    """Noise, and a pack into which noise was put: refused by an error of ours, or the pack itself."""
    small = manifest.pack(SMALL, pack_fuzz.JUDGED, __version__)
    for each in (data, small[:at] + data + small[at + cut:]):
        code = ""
        try:
            assert manifest.unpack(each)[1] == SMALL
        except AuditError as error:
            code = error.code
        assert code in ("", "pack-altered")


def test_mutated_packs_are_refused() -> None:
    """A little of the fuzz target."""
    for seed in pack_fuzz.seeds():
        pack_fuzz.fuzz(seed)
    _, finding = driver.run(pack_fuzz.fuzz, pack_fuzz.seeds(), seconds=0, seed=1, least=110)
    assert finding is None, finding


def test_a_report_that_lies_is_found() -> None:
    """One that was exchanged, with the manifest made anew for it."""
    members = manifest.unpack(_pack())[1]
    members["report.html"] = members["report.html"].replace("○ not shown".encode(), "✓ shown".encode())
    forged = manifest.pack(members, manifest.unpack(_pack())[0].judged, __version__)
    found = judge.judge(forged, _papers().given)
    assert "fails" == found.report.outcome
    assert "holds" == judge.judge(_pack(), _papers().given).report.outcome
    elsewhere = judge.judge(manifest.pack(members, manifest.unpack(_pack())[0].judged, "9.9.9"), _papers().given)
    assert "not checked" == elsewhere.report.outcome


@pytest.mark.parametrize("lacks", [kind.name for kind in KINDS if kind.name != "report" and not kind.optional])
def test_a_pack_says_what_it_lacks(lacks: str) -> None:
    """Each kind may be missing: the pack is written, names it, and can be judged."""
    kind = next(each for each in KINDS if each.name == lacks)
    members = {name: content for name, content in gather.members(_papers().files).items() if not kind.holds(name)}
    data, _ = judge.written(members, _papers().given)
    found = judge.judge(data, _papers().given)
    assert lacks in found.manifest.missing
    assert "holds" == found.report.outcome
    if lacks != "controls":
        assert html.escape(kind.what).encode() in manifest.unpack(data)[1]["report.html"]


def test_a_pack_of_nothing_shows_nothing() -> None:
    """And says so of each claim and each control."""
    data, findings = judge.written({}, _papers().given)
    assert {"not checked"} == {each.outcome for each in findings.values()}
    found = judge.judge(data, _papers().given)
    assert {"not covered"} == {each.status for _, judged in found.frameworks for each in judged}
    assert b"No evidence here shows" in manifest.unpack(data)[1]["report.html"]


def test_what_is_too_large_is_named(tmp_path: Path) -> None:
    """Before it is read whole."""
    large = tmp_path / "large.hcl"
    with large.open("wb") as file:
        file.truncate(2 << 20)
    with pytest.raises(Exception, match=r"large\.hcl"):
        gather.members(Files(policy=large))
    with pytest.raises(AuditError, match="No such file"):
        gather.members(Files(log=tmp_path / "absent"))


def test_the_client_alone_judges_a_pack_a_year_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                     capsys: pytest.CaptureFixture[str]) -> None:
    """Written by the command; judged where there is neither an engine nor a server nor a network, as of that day."""
    papers, pack = _papers(), tmp_path / "pack.zip"
    assert 0 == main(["audit", "pack", "-o", str(pack), *papers.words(), *papers.judging(), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert (pack.stat().st_size, []) == (told["bytes"], told["missing"])
    (tmp_path / "keys.json").write_text(json.dumps({
        "format": KEYS_FORMAT, "log": "00" * 16, "periods": {str(number): key.hex() for number, key in papers.seeds}}))
    (tmp_path / "held").write_bytes((papers.folder / "releases" / "checkpoint").read_bytes())
    (tmp_path / "altered.zip").write_bytes(pack.read_bytes()[:-1] + b"x")
    verify = ["audit", "pack", "verify"]
    done, more, late, altered = each_verb.asked([sys.executable, "-m", "tests.support.client_alone"], [
        [*verify, str(pack), *papers.judging(), "--sha256", told["sha256"], "--require", "evidence-verified",
         "--require", "log-whole", "--report", "own.html"],
        [*verify, str(pack), *papers.judging(), "--period-keys", "keys.json", "--max-release-age", "30d",
         "--held-release", "held", "--require", "release-recent", "--require", "log-tenants"],
        [*verify, str(pack), *papers.judging()[:-1], "2031-01-01", "--json"],
        [*verify, "altered.zip", *papers.judging()]], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert 0 == done.code, done.out + done.err
    assert "FAILS" not in done.out
    assert (tmp_path / "own.html").read_bytes().startswith(b"<!DOCTYPE html>")
    assert 0 == more.code, more.out + more.err
    assert 1 == late.code  # by today's clock the collateral of that day has ended
    assert "fails" == json.loads(late.out)["claims"]["evidence-verified"]["outcome"]
    assert 2 == altered.code


def test_what_is_required_must_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 1 where it goes unchecked; a pack of another digest is not judged at all."""
    pack = tmp_path / "pack.zip"
    assert 0 == main(["audit", "pack", "-o", str(pack), "--policy", str(_papers().folder / "deployment.hcl")])
    assert 0 == main(["audit", "pack", "verify", str(pack)])
    assert 1 == main(["audit", "pack", "verify", str(pack), "--require", "evidence-verified"])
    assert 2 == main(["audit", "pack", "verify", str(pack), "--sha256", "00" * 32])
    assert 2 == main(["audit", "pack", "--policy", str(_papers().folder / "deployment.hcl")])
    assert "no file to write the pack to" in capsys.readouterr().err


def test_mappings_of_ones_own_are_taken_along(tmp_path: Path) -> None:
    """And judged with the others, by whoever verifies the pack."""
    own = tmp_path / "Our House.toml"
    own.write_text('format = "appliance/controls/v1"\nframework = "House rules"\nsource = "intranet"\n[[control]]\n'
                   'id = "H-1"\ntitle = "Logs"\nclaims = ["log-whole"]\nshows = "the log is whole"\n')
    members = gather.members(Files(log=_papers().folder / "audit.jsonl", controls=(own,)))
    known = replace(_papers().given, keys=(packs.AUDIT.public_key().public_bytes_raw(),))  # the log's, which it attests
    found = judge.judge(judge.written(members, known)[0], known)
    assert ("House rules", "covered") == (found.frameworks[-1][0].framework, found.frameworks[-1][1][0].status)
    assert "controls/our-house.toml" in members


def _judged(change: Callable[[dict[str, object]], None]) -> bytes:
    said = json.loads(_listing(SMALL))
    change(said)
    listing = json.dumps(said, sort_keys=True, separators=(",", ":")).encode()
    return zipped.written([zipped.stored(manifest.NAME, listing), *(zipped.entry(*each) for each in SMALL.items())])


@pytest.mark.parametrize("change", [
    lambda said: said.update(missing=[]), lambda said: said.update(more=1), lambda said: said.pop("judged"),
    lambda said: said["members"].reverse(), lambda said: said["members"][0].update(kind="log"),
    lambda said: said["members"][0].update(size=3), lambda said: said.update(format="appliance/audit-pack/v2")])
def test_a_manifest_says_nothing_that_is_not_so(change: Callable[[dict[str, object]], None]) -> None:
    """Its lists are those of the archive, and it has no other members."""
    manifest.unpack(_judged(lambda said: None))
    with pytest.raises(AuditError):
        manifest.unpack(_judged(change))


def test_a_day_that_there_is_not_is_refused() -> None:
    """In the packer's words, too."""
    judged = Judged(at="2026-02-31T00:00:00Z", builder_key=None, measurements_unsigned=False, need_revocation=True,
                    nonces=())
    found = judge.judge(manifest.pack({**SMALL, "report.html": b"x"}, judged, __version__), _papers().given).report
    assert ("fails", True) == (found.outcome, "there is no time" in found.detail)


def test_ten_thousand_requests_are_packed_in_seconds(tmp_path: Path) -> None:
    """With exact detail for the auditor in each record: less than 10 s of a processor, less than 5 MB. Outside
    of the soak, a part of them."""
    requests = extent.examples(1_500, 10_000)
    papers = packs.deployment(tmp_path, requests=requests, retention="")
    begun = time.process_time()
    data, findings = judge.written(gather.members(papers.files), papers.given)
    taken = time.process_time() - begun
    assert {"policy-expected", "policy-padding", "policy-destroyed", "evidence-self-test", "release-recent",
            "log-expired"} == {
        name for name, each in findings.items() if each.outcome != "holds"}
    assert requests == sum(b'"request.done"' in line or b'"request.refused"' in line for line in papers.lines)
    assert taken < 5 + requests / 2000, taken
    assert len(data) < 500 * requests


def test_the_format_lists_every_kind() -> None:
    """By its name, its place and its bound."""
    page = (ROOT / "docs/formats/audit-pack.md").read_text("utf-8")
    for kind in KINDS:
        place = kind.place + ("NAME" if kind.many else "")
        size = f"{kind.most >> 20} MiB" if kind.most >> 20 else f"{kind.most >> 10} KiB" if kind.most >> 10 else "64 B"
        assert f"| `{kind.name}` | `{place}` | {size} |" in page, kind.name


def test_the_guide_ends_in_a_signature_that_verifies(tmp_path: Path) -> None:
    """Its own lines, with openssl alone; another opinion does not verify."""
    guide = (ROOT / "docs/guides/auditors-day.md").read_text("utf-8")
    sign, verify = guide.partition("# openssl\n")[2].partition("```")[0].splitlines()
    (tmp_path / "opinion.txt").write_text("Opinion: none.\n")
    for line in ("openssl genpkey -algorithm ed25519 -out auditor.pem",
                 "openssl pkey -in auditor.pem -pubout -out auditor.pub", sign, verify):
        subprocess.run(line.split(), cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "opinion.txt").write_text("Opinion: some.\n")
    assert subprocess.run(verify.split(), cwd=tmp_path, check=False, capture_output=True).returncode != 0
