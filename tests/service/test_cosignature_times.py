"""Times of cosignatures: what is far from a clock that is known is refused, and nothing of it is in the log."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance import hostclock
from appliance.api.problems import RequestError
from appliance.audit.chain import Chain
from appliance.audit.log import AuditLog
from appliance.auditor.examine import Trust, examine
from appliance.policy.schema import TimestampAuthority, Witness
from appliance.service.attesting.timestamps import Timestamps
from appliance.service.attesting.witnesses import Witnesses
from appliance.transparency import note
from appliance.transparency.note import COSIGNS, NoteKey
from tests.support.timestamping import Authority

WITNESS = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = WITNESS.public_key().public_bytes_raw()
DAY = 86_400


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """A timestamp authority, by openssl and this machine's clock."""
    return Authority(tmp_path_factory.mktemp("tsa") / "a")


@pytest.fixture
def clock() -> Iterator[None]:
    """The host's clock, which is put back."""
    before = hostclock.seconds
    yield
    hostclock.seconds = before  # type: ignore[assignment]


class Service:
    """The part of a service that takes cosignatures, and its log."""

    def __init__(self, authority: Authority) -> None:
        self.out = io.BytesIO()
        self.out.close = lambda: None  # type: ignore[method-assign]
        self.audit = AuditLog(self.out, version=3)
        self.audit.words.witnesses.admit(["w1"])
        self.audit.begin(Chain(), Ed25519PrivateKey.generate())
        self.root = authority.fingerprint()
        self.stamps = Timestamps(self.audit, TimestampAuthority(url="https://tsa.example", root_sha256=self.root))
        self.witnesses = Witnesses(self.audit, (
            Witness(name="w1", url="https://witness.example", public_key=f"ed25519:{PUBLIC.hex()}"),), self.stamps)
        self.audit.checkpoint()

    def cosigned(self, when: int) -> int:
        """What becomes of a cosignature at a time, of the newest checkpoint."""
        text = self.witnesses._chain.newest.checkpoint.text  # type: ignore[union-attr]
        return self.witnesses.take("w1", note.sign(text, "w1", WITNESS, when=when).line().encode())

    def whole(self) -> int:
        """How many cosignatures the log has, in which nothing is wrong."""
        self.audit.close()
        report = examine(self.out.getvalue().splitlines(keepends=True), trust=Trust(
            witnesses=(NoteKey("w1", PUBLIC, COSIGNS),), authority_sha256=self.root))
        assert report.bad is None
        return report.cosignatures


@pytest.mark.parametrize("off", [None, 1 << 53, (1 << 64) - 1, 2 * DAY, -2 * DAY])
def test_a_time_that_is_far_from_the_hosts_clock_is_refused(off: int | None, authority: Authority) -> None:
    """Zero, beyond 2^53 - 1, the last that eight bytes hold, two days to come or past; the log goes on."""
    service, now = Service(authority), round(hostclock.seconds())
    when = 0 if off is None else off if off > 1 << 50 else now + off
    before = service.out.getvalue()
    with pytest.raises(RequestError) as caught:
        service.cosigned(when)
    assert ("invalid_value", True) == (caught.value.code, str(when) in str(caught.value))
    assert before == service.out.getvalue()
    assert 1 == service.cosigned(now + 3600)
    assert 1 == service.whole()


def test_a_time_that_is_far_from_the_authoritys_is_refused(authority: Authority, clock: None) -> None:
    """The host's clock went three days ahead, and the witness with it: a token of this boot says otherwise."""
    service, now = Service(authority), hostclock.seconds()
    service.stamps.take(authority.answer(base64.b64decode(service.stamps.request()["request"])))
    service.audit.checkpoint()
    hostclock.seconds = lambda: now + 3 * DAY  # type: ignore[assignment]
    with pytest.raises(RequestError, match="timestamp authority"):
        service.cosigned(round(now + 3 * DAY))
    with pytest.raises(RequestError, match="host's clock"):
        service.cosigned(round(now))
    hostclock.seconds = lambda: now  # type: ignore[assignment]
    assert 1 < service.cosigned(round(now))
    assert 1 == service.whole()
