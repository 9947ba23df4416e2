"""A feed of bulletins: what is written is read, by its publisher's key alone, and commands go by it."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from appliance.attestation.trust.roots import Roots
from appliance.cli.main import main
from appliance.codec.canonical import canonical
from appliance.errors import PolicyError
from appliance.fleet import judging, ruling
from appliance.policy.bulletins import table
from appliance.policy.schema.platform import Requirements
from appliance.signed import feed
from tests.fleet.test_fleet import _snp
from tests.support.fake_amd import NOW, FakeAmd

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
OURS = feed.ours(3, date(2026, 11, 29))


@pytest.fixture(autouse=True)
def own_table() -> Iterator[None]:
    """The table of this version again, after each."""
    yield
    table.use(table.TABLE)


def _row(**changes: Any) -> dict[str, Any]:
    """A feed with one bulletin on Genoa."""
    row = {"id": "AMD-SB-9999", "attack": "Nobody", "line": "genoa", "first_seen": "2026-11", "checked": "vendor",
           "sources": ["a test"], "lowest": {"snp": 30}, "microcode": {}, "mitigations": "0x0", "flags": [],
           "tee_tcb_svn": [], "remark": "", "enforced_from": "2026-06-10"}
    return {"version": 1, "issued": "2026-11-29", "bulletins": [row | changes]}


def test_our_table_goes_there_and_back() -> None:
    """Each row of the table is a row of the feed, but that sources are texts."""
    found = feed.parse(feed.sign(OURS, KEY), [bytes(32), PUBLIC])
    assert len(found) == len(table.TABLE)
    for one, row in zip(found, table.TABLE, strict=True):
        assert (one.name, one.line, dict(one.lowest), dict(one.microcode), one.mitigations, one.flags, one.remark) == (
            row.name, row.line, dict(row.lowest), dict(row.microcode), row.mitigations, row.flags, row.remark)


def test_a_signature_by_another_or_over_other_bytes() -> None:
    """Neither counts; a signature in another spelling neither, and none at all neither."""
    signed = feed.sign(OURS, KEY)
    other = json.loads(signed)
    other["feed"]["version"] = 4
    for data, keys in ((signed, [bytes(range(32))]), (canonical(other), [PUBLIC]), (signed, []),
                       (canonical(OURS), [PUBLIC]), (signed.replace(b"ed25519:", b"ed25519:0"), [PUBLIC])):
        with pytest.raises(PolicyError) as caught:
            feed.parse(data, keys)
        assert caught.value.code in ("feed-signature", "feed-malformed")


@pytest.mark.parametrize("changes", [
    {"line": "rome"}, {"line": ["genoa"]}, {"lowest": {"rom": 1}}, {"lowest": {"snp": 256}}, {"lowest": {"snp": True}},
    {"lowest": []}, {"microcode": {"Rome": 1}}, {"mitigations": "16"}, {"mitigations": 16}, {"mitigations": "0x01"},
    {"flags": ["debug"]}, {"flags": [[]]}, {"tee_tcb_svn": [1, 2]}, {"enforced_from": "2026-6-1"}, {"id": ""},
    {"enforced_from": 3}, {"first_seen": "soon"}, {"checked": "yes"}, {"sources": "a"}, {"remark": "\x1b[2J"},
    {"more": 1}])
def test_rows_that_are_not_in_form(changes: dict[str, Any]) -> None:
    """Each is refused, and no traceback comes of it."""
    with pytest.raises(PolicyError) as caught:
        feed.rows_of(_row(**changes))
    assert caught.value.code == "feed-malformed"


@pytest.mark.parametrize("change", [None, [], {}, {"version": 1}, {**OURS, "version": -1}, {**OURS, "bulletins": {}},
                                    {**OURS, "bulletins": OURS["bulletins"][:1] * 2}, {**OURS, "issued": "today"}])
def test_feeds_that_are_not_in_form(change: Any) -> None:
    """The whole is looked at, too; a bulletin stands once for a line."""
    with pytest.raises(PolicyError):
        feed.rows_of(copy.deepcopy(change))


def test_what_is_enforced_from_a_day_on(tmp_path: Path) -> None:
    """A machine passes until that day, and fails from then on, with the bulletin's name."""
    amd = FakeAmd("Genoa", tcb={"snp": 29})
    _snp(amd, tmp_path, "a")
    nodes = judging.judge(tmp_path, None, tmp_path / judging.STORE, at=NOW, roots=Roots(amd=amd.roots))
    table.use(feed.rows_of(_row()))
    day = NOW.replace(month=6, day=10)
    before, after = (ruling.rule(nodes, Requirements(), at=at)[0].faults for at in (day - timedelta(days=1), day))
    assert not before
    assert [("bulletin", "AMD-SB-9999 (Nobody): snp is 29, at least 30")] == [
        (each.rule, each.detail) for each in after]


def test_commands_go_by_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`fleet feed` writes what `check` then reads; a wrong key is refused."""
    private, made, unsigned = tmp_path / "key.pem", tmp_path / "feed.json", tmp_path / "table.json"
    private.write_bytes(KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    assert main(["fleet", "feed", str(unsigned), "--version", "2"]) == 0
    unsigned.write_text(json.dumps(_row(line="genoa", lowest={"snp": 200})))
    assert main(["fleet", "feed", str(made), "--of", str(unsigned), "--key", str(private), "--json"]) == 0
    policy = Path(__file__).parents[2] / "policies" / "sev-snp-production.hcl"
    capsys.readouterr()
    main(["check", str(policy), "--feed", str(made), "--feed-key", f"ed25519:{PUBLIC.hex()}"])
    assert "AMD-SB-9999" in capsys.readouterr().out
    assert main(["check", str(policy), "--feed", str(made), "--feed-key", f"ed25519:{bytes(31).hex()}01"]) == 2
    assert main(["check", str(policy), "--feed", str(made)]) == 2
