"""AMD or Intel cannot be reached for a week, or a host stops to pass on what it passed on: nobody is stopped, until the
documents themselves end."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from appliance.attestation.collect import ratls
from appliance.attestation.evidence import ReportWithCollateral
from appliance.attestation.snp.collecting import collector
from appliance.boot.placement import staple
from appliance.cli.main import main
from appliance.client import fetch, seen
from appliance.client.reference import Reference
from appliance.client.verdict import Verdict
from appliance.policy import load
from appliance.policy.digest import host_data
from tests.fuzz.launchdisk_fuzz import archive
from tests.support import fake_appliance, fake_services
from tests.support.expected import ROOT
from tests.support.fake_amd import NOW, FakeAmd
from tests.support.fake_appliance import FakeAppliance, SnpSource, TdxSource
from tests.support.fake_intel import FakeIntel
from tests.support.fake_services import Answer
from tests.support.fake_tsm import certificate_table
from tests.support.images import free_port

# The day on which a timer first asks for new documents, when the service no longer answers; and their last day.
DUE = {"sev-snp": 33, "tdx": 19}
LAST = {"sev-snp": 46, "tdx": 28}
ENDED = {"sev-snp": 3, "tdx": 2}  # exit codes: a list that has ended fails its rule, a document is no longer one
SECONDS = 2  # of a processor, for a cold verification


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """No second passes where a service is waited for."""
    monkeypatch.setattr(fetch, "time", SimpleNamespace(sleep=lambda _: None))


class Host(SnpSource):
    """A host that passes on what it has, through the table of an extended guest request."""

    passes: tuple[str, ...] = ("VCEK", "ASK", "ARK", "CRL")

    def collect(self, report_data: bytes) -> ReportWithCollateral:
        """A report, and what the guest makes of the table."""
        der: dict[str, Any] = {"VCEK": self.amd.leaf, "ASK": self.amd.ask, "ARK": self.amd.ark, "CRL": self.amd.crl()}
        table = certificate_table({name: der[name].public_bytes(Encoding.DER) for name in self.passes})
        report = super().collect(report_data).report
        return ReportWithCollateral(report, collector.certificates(table) if self.passes else ())


class TdxHost(TdxSource):
    """A host that passes on what it fetched, on a disk: Intel's documents."""

    disk: Path | None = None

    def collect(self, report_data: bytes) -> ReportWithCollateral:
        """A quote, and what the guest found on the disk."""
        found = super().collect(report_data)
        if self.disk is None:
            return found
        provider: Any = SimpleNamespace(collect=lambda _: found, close=lambda: None)
        made = staple.stapled(provider, self.disk)
        try:
            return made.collect(report_data)
        finally:
            made.close()


class Client:
    """A client of one appliance: `appliance verify` on some day after the first."""

    def __init__(self, folder: Path, platform: str, server: FakeAppliance, root: x509.Certificate) -> None:
        self.folder, self.platform, self.server = folder, platform, server
        (folder / "root.pem").write_bytes(root.public_bytes(Encoding.PEM))
        (folder / "measurements.json").write_bytes(fake_appliance.measured().to_json())
        self.trusted = ["--unsafe-root", str(folder / "root.pem")]

    def at(self, day: int) -> list[str]:
        """The words for a day."""
        return [*self.trusted, "--at", f"{NOW + timedelta(days=day):%Y-%m-%dT%H:%M:%SZ}"]

    def words(self, day: int, *more: str) -> list[str]:
        """The words of a verification."""
        return ["verify", self.server.url, "--policy", str(self.folder / "deployment.hcl"), "--measurements",
                str(self.folder / "measurements.json"), "--measurements-unsigned", *self.at(day), *more]

    def fetches(self, day: int, place: str) -> int:
        """Exit code of the timer's command."""
        return main(["collateral", "fetch", str(self.folder / "evidence.json"), "-o", str(self.folder / "collateral"),
                     "--from", place, "--if-due", *self.at(day)])


@pytest.fixture(params=sorted(DUE))
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Client]:
    """An appliance whose TLS key lives for long, and its client."""
    amd, intel = FakeAmd("Genoa"), FakeIntel()
    floors = "sev_snp {\n min_tcb { snp = 10 }\n }" if request.param == "sev-snp" else ""
    loaded = load(fake_appliance.write_policy(tmp_path, request.param, evidence=floors))
    source: Any = (Host(amd, host_data(loaded.digest)) if request.param == "sev-snp" else
                   TdxHost(intel, loaded.digest))
    server = FakeAppliance(fake_appliance.attestor(source, loaded), tmp_path)
    key = fake_appliance.key()
    server.rotate(key, der=fake_appliance.certificate(key, end=NOW + timedelta(days=90)))
    made = Client(tmp_path, request.param, server, amd.ark if request.param == "sev-snp" else intel.root)
    made.source, made.amd, made.intel = source, amd, intel  # type: ignore[attr-defined]
    yield made
    server.stop()


def _answers(client: Any) -> dict[str, list[Answer]]:
    """The service's answers; AMD's list lives for 47 days, as its shortest did."""
    if client.platform == "tdx":
        return fake_services.intel(client.intel)
    crl = client.amd.crl(start=NOW - timedelta(days=1), end=NOW + timedelta(days=46)).public_bytes(Encoding.DER)
    return {url: [Answer(crl)] if url.endswith("/crl") else known
            for url, known in fake_services.amd(client.amd).items()}


def _state(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_a_week_without_the_vendor(client: Any) -> None:
    """The service goes away on the very day on which documents are due. The timer's command fails each day, and
    replaces nothing; each verification of that week is good. Once the documents have ended, there is none."""
    if client.platform == "sev-snp":
        client.source.passes = ()
    main(client.words(0, "--save", str(client.folder / "evidence.json")))
    with fake_services.serving(_answers(client)) as (url, _):
        assert 0 == client.fetches(0, url)
    collateral = client.folder / "collateral"
    before, gone = _state(collateral), f"http://127.0.0.1:{free_port()}"
    for day in range(DUE[client.platform], DUE[client.platform] + 8):
        assert 2 == client.fetches(day, gone)
        assert before == _state(collateral)
        assert 0 == main(client.words(day, "--collateral", str(collateral)))
    assert 0 == main(client.words(LAST[client.platform] - 1, "--collateral", str(collateral)))
    assert ENDED[client.platform] == main(client.words(LAST[client.platform] + 2, "--collateral", str(collateral)))


def _pass_on(client: Any) -> int:
    """The host fetches what its own evidence needs, and writes it to the guest's disk; returns how many
    documents."""
    if client.platform == "sev-snp":
        return len(client.source.passes)
    main(client.words(0, "--save", str(client.folder / "evidence.json")))
    with fake_services.serving(_answers(client)) as (url, _):
        assert 0 == client.fetches(0, url)
    files = sorted(path.name for path in (client.folder / "collateral").iterdir())
    client.source.disk = client.folder / "collateral.disk"
    subprocess.run(["tar", "--format=ustar", "-cf", client.source.disk, "-C", client.folder / "collateral", *files],
                   check=True)
    return len(set(_state(client.folder / "collateral").values()))  # one chain signed both documents


def _stop_passing_on(client: Any) -> None:
    client.source.passes, client.source.disk = (), None


def test_what_the_host_passed_on_is_kept(client: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With certificates and documents stapled by the host, a client needs no folder. It keeps them for the day on which
    the host passes on nothing; a client that did not keep them could not check. Another appliance's count for nothing.
    """
    kept, count = ("--keep", str(tmp_path / "kept")), _pass_on(client)
    assert 0 == main(client.words(0))
    assert 0 == main(client.words(0, *kept))
    assert count == len([path for path in (tmp_path / "kept").rglob("*") if path.is_file()])
    _stop_passing_on(client)
    assert 0 == main(client.words(7, *kept))
    assert 2 == main(client.words(7))
    other = FakeAppliance(client.server.attestor, tmp_path)
    key = fake_appliance.key()
    other.rotate(key, der=fake_appliance.certificate(key, end=NOW + timedelta(days=90)))
    try:
        words = client.words(7, *kept)
        words[1] = other.url
        assert 2 == main(words)
    finally:
        other.stop()
    capsys.readouterr()


@pytest.mark.parametrize("client", ["sev-snp"], indirect=True)
def test_nothing_of_a_bad_verdict_is_kept(client: Any, tmp_path: Path) -> None:
    """Evidence that meets no policy leaves no files behind."""
    client.source.fields["measurement"] = bytes(48)
    assert 3 == main(client.words(0, "--keep", str(tmp_path / "kept")))
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize("client", ["sev-snp"], indirect=True)
def test_a_good_verdict_stands_where_nothing_can_be_kept(client: Any, tmp_path: Path,
                                                         capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that is a file: what is not kept is a remark, and the exit code as it was."""
    (tmp_path / "kept").write_bytes(b"")
    assert 0 == main(client.words(0, "--keep", str(tmp_path / "kept")))
    assert "--keep: " in capsys.readouterr().out


def test_many_keep_at_the_same_time(tmp_path: Path) -> None:
    """Threads that write, read and make room in one folder, of documents that are padded anew each time: no error, a
    file for each document, and no more than there may be."""
    amd, padding = FakeAmd("Genoa"), itertools.count()
    chain = [each.public_bytes(Encoding.DER) for each in (amd.leaf, amd.ask, amd.ark, amd.crl())]
    policy = load(fake_appliance.write_policy(tmp_path, "sev-snp"))
    evidence = fake_appliance.attestor(SnpSource(amd, host_data(policy.digest)), policy).attest(bytes(32)).to_json()
    reference = Reference(policy, None, keep=tmp_path / "kept")

    def once(number: int) -> Verdict:
        lists = [FakeAmd("Genoa").crl().public_bytes(Encoding.DER)] if number % 4 == 0 else []
        items = [base64.b64encode(each + bytes(next(padding) % 200)).decode() for each in (*chain, *lists)]
        raw = json.dumps({**json.loads(evidence), "collateral": items}, sort_keys=True, separators=(",", ":")).encode()
        assert not seen.joined(reference, "t").collateral.problems
        return seen.keep(reference, Verdict("verified", "t", NOW, policy.digest, raw=raw))

    with ThreadPoolExecutor(4) as pool:
        assert not [each.findings for each in pool.map(once, range(100)) if each.findings]
    kept = [path.read_bytes() for path in (tmp_path / "kept").rglob("*") if path.is_file()]
    assert set(chain) < set(kept)
    assert seen.MOST >= len(kept)


@pytest.mark.parametrize("client", ["tdx"], indirect=True)
@pytest.mark.parametrize("more", [0, 20_000])
def test_a_certificate_has_no_room_for_documents(client: Any, more: int) -> None:
    """The evidence in an RA-TLS certificate goes without documents that would make it long; what a client needs for it
    comes with the evidence that it asks for. The handshake's certificate stays small."""
    _pass_on(client)
    disk, made = client.source.disk, fake_appliance.key()
    if more:
        junk = client.folder / "more.json"
        junk.write_bytes(b"{" + b" " * more)
        subprocess.run(["tar", "--format=ustar", "-rf", disk, "-C", client.folder, junk.name], check=True)
    attestor, spki = client.server.attestor, ratls.spki(made.public_key())
    attestor.bind_tls_key(hashlib.sha256(spki).digest())
    shown = ratls.issue(made, attestor.attest(ratls.nonce_for(spki)), (), not_before=NOW - timedelta(days=1),
                        not_after=NOW + timedelta(days=90)).public_bytes(Encoding.DER)
    client.server.rotate(made, der=shown)
    assert ratls.MAX_BYTES > len(shown)
    assert 0 == main(client.words(0))
    _stop_passing_on(client)
    assert 2 == main(client.words(0))


@pytest.mark.parametrize("client", ["tdx"], indirect=True)
def test_what_the_host_passes_on_is_checked(client: Any) -> None:
    """Documents of another authority, or out of their time, are as good as none; nor do they hurt beside good ones."""
    _pass_on(client)
    good = client.source.disk
    assert 2 == main(client.words(LAST["tdx"] + 2))
    client.source.disk = bad = client.folder / "bad.disk"
    files = {path.name: path.read_bytes() for path in (client.folder / "collateral").iterdir()}
    forged = {name: data.replace(b"UpToDate", b"OutOfDat") for name, data in files.items()}
    bad.write_bytes(archive(forged))
    assert 0 != main(client.words(0))
    assert 0 == main(client.words(0, "--collateral", str(client.folder / "collateral")))
    client.source.disk = good
    assert 0 == main(client.words(0))


def _cold(client: Any, saved: str, *more: str) -> float:
    """Verify saved evidence in a new process; returns the seconds of a processor that it took."""
    words = [saved if word == client.server.url else word for word in client.words(0, *more, "--json")]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-m", "appliance", *words], cwd=ROOT, capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert "verified" == json.loads(done.stdout)["verdict"], done.stderr
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.slow
def test_a_cold_verification_offline(client: Any, tmp_path: Path) -> None:
    """A new process judges evidence in a file by files: less than two seconds of a processor, imports included."""
    saved = str(tmp_path / "evidence.json")
    main(client.words(0, "--save", saved))
    with fake_services.serving(_answers(client)) as (url, _):
        client.fetches(0, url)
    assert SECONDS > _cold(client, saved, "--collateral", str(tmp_path / "collateral"))


@pytest.mark.slow
def test_a_cold_verification_by_what_the_host_passed_on(client: Any, tmp_path: Path) -> None:
    """The same, by documents in the evidence and none beside it."""
    _pass_on(client)
    (tmp_path / "elsewhere").mkdir()
    saved = str(tmp_path / "elsewhere" / "evidence.json")
    assert 0 == main(client.words(0, "--save", saved))
    assert SECONDS > _cold(client, saved)
