"""Fuzz target: packs from strangers, the archive and what is judged in it.

The first byte says which: an archive as it is, or a member's content, which is packed and judged.
"""

from __future__ import annotations

from datetime import UTC, datetime

from appliance import __version__
from appliance.auditor.archive import manifest
from appliance.auditor.archive.manifest import Judged
from appliance.auditor.archive.members import KINDS
from appliance.auditor.claims import controls, table
from appliance.auditor.claims.case import Case, Given
from appliance.auditor.claims.table import CLAIMS
from appliance.auditor.report import page
from appliance.errors import AuditError
from appliance.signed import releases
from tests.fuzz import measurements_fuzz, receipts_fuzz
from tests.support import packs
from tests.support.policies import BASE

SMALL = {"policy/deployment.hcl": BASE.encode(), "log/audit.jsonl": receipts_fuzz.LOG, "receipts/a.json": b'{"a":1}'}
JUDGED = Judged(at="2026-03-01T09:00:00Z", builder_key=None, measurements_unsigned=False, need_revocation=True,
                nonces=())
_GIVEN = Given(datetime(2026, 3, 1, 9, tzinfo=UTC), builder_key=bytes(32), nonces=(bytes(32),),
               keys=(receipts_fuzz.PUBLIC,))


def seeds() -> list[bytes]:
    """A small pack, and a content for each kind of member."""
    own = [b"a" + manifest.pack(SMALL, JUDGED, __version__)]
    samples = {
        "policy": BASE.encode(), "log": receipts_fuzz.LOG, "receipt": receipts_fuzz.seeds()[2][1:],
        "checkpoint": receipts_fuzz.seeds()[0][1:], "extract": receipts_fuzz.seeds()[4][1:],
        "measurements": measurements_fuzz.seeds()[0],
        "sbom": b'{"bomFormat":"CycloneDX","components":[{"type":"library","name":"a","hashes":[{"content":"00"}]}]}',
        "provenance": b'{"payload":"e30=","payloadType":"application/vnd.in-toto+json","signatures":[{"sig":"AA=="}]}',
        "bundle": packs.BUNDLES.joinpath("p256.sigstore").read_bytes(),
        "releases": releases.record(0, None, "releases.opened", {
            "log": "00" * 16, "builder_ed25519": "00" * 32}, _GIVEN.at) + b"\n",
        "release-head": receipts_fuzz.seeds()[0][1:],
        "health": b'{"policy_sha384":"00","self_test_sha384":"00","boot":[{"step":"a","verdict":"passed"}]}',
        "controls": b'format = "appliance/controls/v1"\nframework = "f"\nsource = "s"\n[[control]]\nid = "1"\n'
                    b'title = "t"\nclaims = ["log-whole"]\nshows = "x"\n'}
    return own + [bytes([ord("0") + place]) + samples.get(kind.name, b"x") for place, kind in enumerate(KINDS)]


def fuzz(data: bytes) -> None:
    """Read or judge; only errors of ours come out, and a report comes of whatever is in a pack."""
    kind, rest = data[:1], data[1:]
    if kind == b"a":
        try:
            found = manifest.unpack(rest)[1]
        except AuditError:
            return
        assert found == SMALL, "a pack that nobody wrote"
    elif kind and ord("0") <= kind[0] < ord("0") + len(KINDS):
        row = KINDS[kind[0] - ord("0")]
        _judge({**SMALL, row.place + ("x" if row.many else ""): rest[:row.most]})


def _judge(found: dict[str, bytes]) -> None:
    case = Case(found, _GIVEN)
    findings = table.judge(case)
    assert set(findings) == set(CLAIMS)
    try:
        listed = [(each, controls.judge(each, findings)) for each in (
            controls.parse(content, name) for name, content in case.many("controls").items())]
    except AuditError:
        listed = []
    assert page.page(case, findings, listed).endswith(b"</html>\n")
