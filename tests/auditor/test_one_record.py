"""One record for one reader: its key goes with it, and opens neither another record nor the period."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from appliance.auditor.pack import gather
from appliance.auditor.records import MAX_LINE_BYTES, Reader, WrongRecordError, of_version_1
from appliance.auditor.unsealing import KEYS_FORMAT
from appliance.cli.main import main
from appliance.errors import NoteError
from tests.support import folders, packs
from tests.support.log_by_spec import LogBySpec

AUDIT_KEY = packs.AUDIT.public_key().public_bytes_raw().hex()


@functools.cache
def _papers() -> packs.Papers:
    papers = packs.deployment(folders.lasting("one-record"), requests=12)
    _keys(papers.folder / "periods.json", dict(papers.seeds))
    return papers


def _keys(place: Path, keys: dict[int, bytes]) -> None:
    place.write_text(json.dumps({"format": KEYS_FORMAT, "log": "00" * 16, "periods": {
        str(number): key.hex() for number, key in keys.items()}}))


def _sealed() -> list[int]:
    """The numbers of records that are sealed, and whose period's key is left."""
    records = [json.loads(line) for line in _papers().lines]
    return [each["seq"] for each in records if each.get("period") in dict(_papers().seeds)]


def _exported(capsys: pytest.CaptureFixture[str], *numbers: int) -> dict[str, Any]:
    at = _papers().folder
    assert 0 == main(["audit", "export", str(at / "audit.jsonl"), "--period-keys", str(at / "periods.json"),
                      *(word for number in numbers for word in ("--record", str(number)))])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_reader_opens_one_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the bundle and the attested key alone; another record of the same period stays closed to the key."""
    first, second, *_ = _sealed()
    made, place = _exported(capsys, first), tmp_path / "bundle.json"
    place.write_text(json.dumps(made, sort_keys=True, separators=(",", ":")))
    assert 0 == main(["audit", "open", str(place), "--key", AUDIT_KEY])
    opened = json.loads(capsys.readouterr().out)
    assert (first, True) == (opened["seq"], opened["request"].startswith("req-"))
    assert "sealed" not in opened
    other = Reader().read(_papers().lines[second][:-1])
    assert json.loads(_papers().lines[first])["period"] == other.fields["period"]
    with pytest.raises(NoteError, match="do not open"):
        Reader().opened_by(bytes.fromhex(made["records"][0]["key"]), other)
    assert all(key.hex() not in place.read_text() for _, key in _papers().seeds)


def test_a_record_in_the_open_needs_no_key(capsys: pytest.CaptureFixture[str]) -> None:
    """A bundle of such alone is of version 1 of its form, as before."""
    assert "log.opened" == json.loads(_papers().lines[0])["event"]
    alone, mixed = _exported(capsys, 0), _exported(capsys, 0, _sealed()[0])
    assert ("appliance/audit-bundle/v1", "appliance/audit-bundle/v2") == (alone["format"], mixed["format"])
    assert [False, True] == ["key" in each for each in mixed["records"]]


def test_the_bundle_verifies_as_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`audit verify` proves the sealed line, and says that there is a key; another log's key proves nothing."""
    place = tmp_path / "bundle.json"
    place.write_text(json.dumps(_exported(capsys, _sealed()[0]), sort_keys=True, separators=(",", ":")))
    assert 0 == main(["audit", "verify", str(place), "--key", AUDIT_KEY])
    printed = capsys.readouterr()
    assert _papers().lines[_sealed()[0]].decode() == printed.out
    assert "keys of sealed records" in printed.err
    for action in ("verify", "open"):
        assert 2 == main(["audit", action, str(place), "--key", "ab" * 32])
        assert 2 == main(["audit", action, str(place)])
    assert "" == capsys.readouterr().out


@pytest.mark.parametrize("key", ["00" * 32, "00" * 31, "zz", 7, None])
def test_a_key_that_is_not_the_records_opens_nothing(
        key: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Told, without a traceback."""
    made, place = _exported(capsys, _sealed()[0]), tmp_path / "bundle.json"
    made["records"][0]["key"] = key
    place.write_text(json.dumps(made, sort_keys=True, separators=(",", ":")))
    assert 2 == main(["audit", "open", str(place), "--key", AUDIT_KEY])
    printed = capsys.readouterr()
    assert ("", False) == (printed.out, "Traceback" in printed.err)


def test_a_destroyed_key_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No bundle without the key that was asked for."""
    at = _papers().folder
    _keys(tmp_path / "none.json", {})
    assert 2 == main(["audit", "export", str(at / "audit.jsonl"), "--record", str(_sealed()[0]),
                      "--period-keys", str(tmp_path / "none.json")])
    assert "is not among those that were named" in capsys.readouterr().err


def test_a_record_of_version_2_has_no_key_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its key would open others: the export says so, and the record is exported without."""
    log, place, keys = LogBySpec(), tmp_path / "audit.jsonl", tmp_path / "keys.json"
    log.begin(2)
    log.seal("request.done", 1_800_000_000, bytes(32), request="req-" + "0a" * 16, endpoint="/v1/models", status=200)
    log.checkpoint()
    place.write_bytes(b"".join(log.data))
    _keys(keys, {1_800_000_000: bytes(32)})
    export = ["audit", "export", str(place), "--record", "1"]
    assert 2 == main([*export, "--period-keys", str(keys)])
    assert "a key opens all records of a boot and period" in capsys.readouterr().err
    assert 0 == main(export)
    assert "key" not in json.loads(capsys.readouterr().out)["records"][0]


def test_a_pack_takes_no_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An extract loses the keys of its records, and proves them as before."""
    made, place = _exported(capsys, _sealed()[0]), tmp_path / "extract.json"
    place.write_text(json.dumps(made))
    taken, = gather.members(gather.Files(extracts=(place,))).values()
    for entry in made["records"]:
        assert entry.pop("key").encode() not in taken
    assert {**made, "format": "appliance/audit-bundle/v1"} == json.loads(taken)


def test_a_log_is_opened_by_keys_of_periods(capsys: pytest.CaptureFixture[str]) -> None:
    """Without them `audit open` says what is needed."""
    assert 2 == main(["audit", "open", str(_papers().folder / "audit.jsonl")])
    assert "--period-keys" in capsys.readouterr().err


def test_keys_are_of_sealed_records_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A bundle with a key beside a record in the open is not in form."""
    made, place = _exported(capsys, 0, _sealed()[0]), tmp_path / "bundle.json"
    made["records"][0]["key"] = "00" * 32
    place.write_text(json.dumps(made, sort_keys=True, separators=(",", ":")))
    assert 2 == main(["audit", "open", str(place), "--key", AUDIT_KEY])
    assert "not in form" in capsys.readouterr().err


@pytest.mark.parametrize(("line", "expected"), [
    (b'{"event":"x","v":1}', True), (b'{"v":1}', True), (b'{"v":2}', False), (b'{"v":1.0}', False),
    (b'{"v":true}', False), (b'{"w":1}', False), (b"[1]", False), (b"1", False), (b"", False), (b"no JSON", False)])
def test_which_lines_are_of_version_1(line: bytes, expected: bool) -> None:
    assert expected is of_version_1(line)


def test_a_long_line_is_no_record() -> None:
    """It is refused before it is parsed."""
    with pytest.raises(WrongRecordError, match="too long"):
        Reader().read(b'{"a":"' + b"x" * MAX_LINE_BYTES + b'"}')
