"""`appliance collateral fetch`: from a report or quote alone to a genuine one, by services on the loopback."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from appliance.attestation.evidence import ReportWithCollateral
from appliance.attestation.judge import collateral_folder
from appliance.attestation.judge.examine import examine
from appliance.attestation.judge.material import Material
from appliance.attestation.tdx.judging import verify as tdx_verify
from appliance.attestation.trust.roots import VENDORS
from appliance.attestation.x509 import pem, walks
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.cli.main import main
from appliance.client import fetch, needs
from appliance.errors import UncheckedEvidenceError, UnsupportedEvidenceError
from appliance.policy import load
from appliance.policy.digest import host_data
from tests.fuzz import collateral_fuzz, driver
from tests.support import fake_appliance, fake_services
from tests.support.fake_amd import NOW, FakeAmd
from tests.support.fake_appliance import FakeAppliance
from tests.support.fake_intel import FakeIntel, dice_certificate
from tests.support.fake_services import Answer, Answers
from tests.support.vectors import need

AT = ["--at", "2026-06-01"]


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that were waited for services, of which none pass."""
    found: list[float] = []
    monkeypatch.setattr(fetch, "time", SimpleNamespace(sleep=found.append))
    return found


def _files(folder: Path, evidence: bytes, root: x509.Certificate) -> list[str]:
    (folder / "evidence").write_bytes(evidence)
    (folder / "root.pem").write_bytes(root.public_bytes(Encoding.PEM))
    return ["collateral", "fetch", str(folder / "evidence"), "--unsafe-root", str(folder / "root.pem"), *AT, "--json"]


def _fetch(words: list[str], place: str, folder: Path,
           capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = main([*words, "--from", place, "-o", str(folder)])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("product", "version"), [
    ("Milan", 2), ("Genoa", 2), ("Milan", 3), ("Genoa", 3), ("Turin", 5), ("Turin", 2)])
def test_a_report_alone_becomes_genuine(product: str, version: int, tmp_path: Path,
                                        capsys: pytest.CaptureFixture[str]) -> None:
    """Leaf, chain and list by their URLs, and verified at once. Of version 2, the leaf that is found tells the line."""
    fake = FakeAmd(product)
    words = _files(tmp_path, fake.report(version=version), fake.ark)
    answers = fake_services.amd(fake)
    with fake_services.serving(answers) as (url, asked):
        code, found = _fetch(words, url, tmp_path / "out", capsys)
    assert [*answers] == asked[-3:]
    assert (1 if (product, version) == ("Genoa", 2) else 0) == len(asked) - 3  # asked as Milan's first
    assert (0, "genuine") == (code, found["evidence"]["verdict"]), found
    assert any("no certificate is revoked" in each for each in found["evidence"]["proved"])
    assert found["test_roots"]


def test_a_quote_alone_becomes_genuine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The raw answers of Intel's service are joined, with the certificates of their headers."""
    fake = FakeIntel()
    words = _files(tmp_path, fake.quote(), fake.root)
    with fake_services.serving(fake_services.intel(fake)) as (url, asked):
        assert (0, "genuine") == (lambda code, found: (code, found["evidence"]["verdict"]))(
            *_fetch(words, url, tmp_path / "out", capsys))
    assert set(fake_services.intel(fake)) == set(asked)
    assert {"intel-tdx-tcb-0a0b0c0d0e0f.json", "intel-tdx-tcb-0a0b0c0d0e0f.json.issuer-chain.pem",
            "intel-tdx-qe-identity.json", "intel-tdx-qe-identity.json.issuer-chain.pem", "intel-pck-platform.crl",
            "intel-root.crl"} == {each.name for each in (tmp_path / "out").iterdir()}


def test_a_mirror_in_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By URL path with the query, with the host before it or without; and as `--print` names the files."""
    fake = FakeAmd("Genoa")
    words = _files(tmp_path, fake.report(), fake.ark)
    for name, top in (("plain", "."), ("hosts", "kdsintf.amd.com")):
        for url, (answer,) in fake_services.amd(fake).items():
            file = tmp_path / name / top / url.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(answer.body)
        assert 0 == _fetch(words, str(tmp_path / name), tmp_path / f"{name}-out", capsys)[0]
    assert 0 == _fetch(words, str(tmp_path / "plain-out"), tmp_path / "again", capsys)[0]
    (tmp_path / "none").mkdir()
    code, found = _fetch(words, str(tmp_path / "none"), tmp_path / "nothing", capsys)
    assert (2, 3, []) == (code, sum("error" in each for each in found["fetched"]), [*(tmp_path / "nothing").iterdir()])


def test_printed_requests_made_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What curl keeps, answers and headers, is collateral as it lies."""
    fake = FakeIntel()
    words = _files(tmp_path, fake.quote(), fake.root)
    assert 0 == main([*words, "--print"])
    listed = json.loads(capsys.readouterr().out)["requests"]
    folder, answers = tmp_path / "elsewhere", fake_services.intel(fake)
    folder.mkdir()
    for each in listed:
        answer, = answers["/" + each["url"].split("/", 3)[3]]
        assert f"'{each['url']}'" in each["curl"]
        (folder / each["file"]).write_bytes(answer.body)
        if each["chain_header"]:
            (folder / f"{each['file']}.headers").write_bytes(
                b"HTTP/2 200\r\nDate: today\r\n" + f"{each['chain_header']}: {answer.headers[each['chain_header']]}"
                .encode() + b"\r\n\r\n")
    found = tdx_verify.verify(fake.quote(), collateral_folder.load(folder), at=NOW, **fake.pins)
    assert "UpToDate" == found.tcb.status
    assert 0 == _fetch(words, str(folder), tmp_path / "out", capsys)[0]


def _with(answers: Answers, ending: str, *new: Answer) -> Answers:
    return {url: [*new, *known] if url.endswith(ending) else known for url, known in answers.items()}


def test_a_service_that_limits_the_rate(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                        waits: list[float]) -> None:
    """It is asked again when it says, and not if that is too long."""
    fake = FakeAmd()
    words = _files(tmp_path, fake.report(), fake.ark)
    later = Answer(status=429, headers={"Retry-After": "0"})
    with fake_services.serving(_with(fake_services.amd(fake), "/crl", later, Answer(b"", 503), later)) as (url, asked):
        assert 0 == _fetch(words, url, tmp_path / "out", capsys)[0]
    assert (4, [0, 2, 0]) == (asked.count("/vcek/v1/Milan/crl"), waits)
    long = Answer(status=429, headers={"Retry-After": "86400"})
    with fake_services.serving(_with(fake_services.amd(fake), "/crl", long)) as (url, asked):
        code, found = _fetch(words, url, tmp_path / "other", capsys)
    assert (2, 1, "genuine") == (code, asked.count("/vcek/v1/Milan/crl"), found["evidence"]["verdict"])
    assert "asks to wait 86400 s" in found["fetched"][-1]["error"]


@pytest.mark.parametrize("bad", [
    Answer(b"<html>sign in</html>"), Answer(b""), Answer(b"0\x82\x05\x00half"), Answer(b"x" * ((1 << 20) + 1)),
    Answer(b"", 404), Answer(b"", 302, {"Location": "http://127.0.0.1:1/"}), Answer(b"{}")],
    ids=["page", "empty", "half", "long", "absent", "elsewhere", "json"])
def test_what_is_not_an_answer_is_not_kept(bad: Answer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No file is written, and one that is there stays as it is."""
    fake = FakeAmd()
    words = _files(tmp_path, fake.report(), fake.ark)
    kept = tmp_path / "out" / "amd-milan-vcek.crl"
    kept.parent.mkdir()
    before = fake.crl().public_bytes(Encoding.DER)
    kept.write_bytes(before)
    with fake_services.serving({**fake_services.amd(fake), "/vcek/v1/Milan/crl": [bad]}) as (url, _):
        code, found = _fetch(words, url, kept.parent, capsys)
    assert (2, True) == (code, "error" in found["fetched"][-1])
    assert before == kept.read_bytes()
    assert 3 == len([*kept.parent.iterdir()])


def test_a_forged_report_stays_forged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was fetched is used at once."""
    fake = FakeAmd()
    report = bytearray(fake.report())
    report[0x50] ^= 1
    words = _files(tmp_path, bytes(report), fake.ark)
    with fake_services.serving(fake_services.amd(fake)) as (url, _):
        code, found = _fetch(words, url, tmp_path / "out", capsys)
    assert (1, "report-signature") == (code, found["evidence"]["code"])


@pytest.mark.parametrize(("place", "says"), [
    ("http://192.0.2.1", "plain http"), ("ftp://127.0.0.1", "expected https"), ("/nowhere", "neither a folder")])
def test_places_that_are_no_mirror(place: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One error each, before anything is asked for."""
    (tmp_path / "evidence").write_bytes(FakeAmd().report())
    assert 2 == main(["collateral", "fetch", str(tmp_path / "evidence"), "-o", str(tmp_path / "out"), "--from", place])
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("file", "url"), [
    ("snp/turin_attestation_report.bin", "https://kdsintf.amd.com/vcek/v1/Turin/59790fb1c39f35c1"
     "?fmcSPL=1&blSPL=1&teeSPL=1&snpSPL=4&ucodeSPL=81"),
    ("tdx/quote_v4.bin", "https://api.trustedservices.intel.com/tdx/certification/v4/tcb?fmspc=B0C06F000000")])
def test_public_evidence_names_its_requests(file: str, url: str) -> None:
    """As the services' documents spell them."""
    assert url == needs.of(need(file).read_bytes()).all()[0].url


def test_intels_lists_are_where_its_certificates_say() -> None:
    """The URLs of both lists stand in the chain of a real quote."""
    data = need("tdx/quote_v4.bin").read_bytes()
    told = [each.url for each in needs.of(data).all()]
    assert all(url.encode() in data or url in told for url in told)
    chain = x509.load_pem_x509_certificates(data[data.index(b"-----BEGIN"):].rstrip(b"\0"))
    points = [each.extensions.get_extension_for_class(x509.CRLDistributionPoints).value for each in chain[:2]]
    assert told[2:] == [part.full_name[0].value for point in points for part in point]


def test_a_vlek_cannot_be_fetched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Who has it is said; its chain and list are asked for."""
    fake = FakeAmd("Genoa", vlek=True)
    (tmp_path / "evidence").write_bytes(fake.report())
    assert 0 == main(["collateral", "fetch", str(tmp_path / "evidence"), "--print"])
    told = capsys.readouterr().out
    assert "AMD gives a VLEK to its cloud alone" in told
    assert "/vlek/v1/Genoa/cert_chain'" in told


def test_a_quote_in_a_certificate() -> None:
    """The requests are those of the quote in it."""
    quote = FakeIntel().quote()
    assert needs.of(quote) == needs.of(dice_certificate(quote=quote))


def test_the_script_of_a_report_and_of_a_quote() -> None:
    """A reason and a command for each request; alternatives are said where the report leaves some open."""
    quote, report = FakeIntel().quote(), FakeAmd("Genoa").report()
    for data, kind in ((quote, "Intel TDX quote, version 4"), (report, "AMD SEV-SNP attestation report, version 3")):
        told = needs.explained(needs.of(data)).splitlines()
        assert told[0] == f"# {kind}"
        assert [each.curl() for each in needs.of(data).all()] == [line for line in told if line.startswith("curl")]
        assert not any("one of the next" in line or "FMSPC" in line for line in told)
    older = needs.of(FakeAmd("Milan").report(version=2))
    told = needs.explained(older).splitlines()
    assert told.count("# one of the next will answer: the report does not tell the product line") == sum(
        len(group) > 1 for group in older.wanted) > 0


def test_the_launch_value_that_google_endorses() -> None:
    """MRTD or launch digest, also out of the appliance's own evidence; of a TPM there is none."""
    assert needs.launch_value(FakeIntel().quote(mr_td=b"\7" * 48)) == b"\7" * 48
    assert needs.launch_value(FakeAmd().report(measurement=b"\5" * 48)) == b"\5" * 48
    with pytest.raises(UnsupportedEvidenceError, match="not recognised as evidence: Google endorses"):
        needs.launch_value(b"another file")


def test_what_lies_in_the_folder_and_was_not_understood_is_named(tmp_path: Path) -> None:
    """With its reason, eight of them; evidence itself is not among it."""
    fake = FakeIntel()
    (tmp_path / "a.json").write_text('{"tcbInfo": {"id": "SGX"}, "signature": "00"}')
    (tmp_path / "b.json").write_text('{"tcbInfo": {')
    (tmp_path / "c").write_bytes(b"")
    (tmp_path / "d.html").write_bytes(b"<html>")
    (tmp_path / "e.json").write_text('{"status": 404}')
    (tmp_path / "f.der").write_bytes(bytes(2 << 20))
    (tmp_path / "quote").write_bytes(fake.quote())
    for number in range(9):
        (tmp_path / f"x{number}").mkdir()
    with pytest.raises(UncheckedEvidenceError) as caught:
        tdx_verify.verify(fake.quote(), collateral_folder.load(tmp_path), at=NOW, **fake.pins)
    hint = str(caught.value.hint)
    for said in ("a.json: tcbInfo of 'SGX'", "b.json: not whole JSON", "c: empty", "d.html: HTML", "f.der: larger than",
                 "e.json: JSON with status", "x1: a folder", "and 7 more", "tcb?fmspc=0A0B0C0D0E0F", "qe/identity",
                 "pckcrl?ca=platform", "IntelSGXRootCA.der"):
        assert said in hint
    assert "quote:" not in hint


BLOCK = re.compile(rb"^-----BEGIN (CERTIFICATE|X509 CRL)-----[ \r]*$.*?^-----END \1-----", re.MULTILINE | re.DOTALL)
PARTS = (b"-----BEGIN CERTIFICATE-----", b"-----BEGIN X509 CRL-----", b"-----END CERTIFICATE-----",
         b"-----END X509 CRL-----", b"\n", b"\r\n", b" ", b"AB", b"-")


@given(st.lists(st.sampled_from(PARTS), max_size=20).map(b"".join))
def test_blocks_are_those_of_the_usual_pattern(data: bytes) -> None:
    """One pattern says what a block of PEM is, but takes minutes for a megabyte of beginnings."""
    assert [(found[1], found[0]) for found in BLOCK.finditer(data)] == pem.blocks(data)


@pytest.mark.parametrize("piece", [b"-----BEGIN CERTIFICATE-----\n", b"HTTP/\n\n", b"-----BEGIN CERTIFICATE-----\n"
                                   b"-----BEGIN X509 CRL-----\n"])
def test_text_that_begins_and_never_ends_is_read_in_one_pass(piece: bytes) -> None:
    """A hostile service may send that as collateral: the time of a test ends long before a quadratic reader does."""
    found = Collateral()
    assert not found.add(piece * ((8 << 20) // len(piece)), "long")
    assert found == Collateral()


@pytest.mark.parametrize("lacks", range(4))
def test_only_what_is_absent_is_asked_for(lacks: int, tmp_path: Path) -> None:
    """Of the four parts of Intel's collateral, one at a time."""
    fake = FakeIntel()
    wanted = needs.of(fake.quote()).all()
    for number, (request, (answer,)) in enumerate(zip(wanted, fake_services.intel(fake).values(), strict=True)):
        if number != lacks:
            (tmp_path / request.file).write_bytes(answer.body)
            for value in answer.headers.values():
                (tmp_path / "headers").write_text(value)
    with pytest.raises(UncheckedEvidenceError, match="1 of 4 parts") as caught:
        tdx_verify.verify(fake.quote(), collateral_folder.load(tmp_path), at=NOW, **fake.pins)
    hint = str(caught.value.hint)
    assert [number == lacks for number in range(4)] == [each.url in hint for each in wanted]


def test_an_absent_vcek_names_its_whole_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the hint of `evidence`, with what lies beside the report and is not understood."""
    (tmp_path / "report.bin").write_bytes(need("snp/genoa_report.bin").read_bytes())
    (tmp_path / "notes.txt").write_text("certificates: ask Bob")
    assert 2 == main(["evidence", str(tmp_path / "report.bin"), "--json"])
    outcome, = json.loads(capsys.readouterr().out)
    assert needs.of((tmp_path / "report.bin").read_bytes()).all()[0].url in outcome["hint"]
    assert "notes.txt: neither certificates nor" in outcome["hint"]
    assert "report.bin:" not in outcome["hint"]


@pytest.mark.parametrize("guide", ["sev-snp", "tdx"])
def test_the_guides_policies_are_valid(guide: str, tmp_path: Path) -> None:
    """The block that replaces the example's."""
    root = Path(__file__).parents[2]
    block = re.search(r"```hcl\n(.*?)```", (root / f"docs/guides/{guide}.md").read_text(), re.DOTALL)
    example = (root / "examples/vm/deployment.hcl").read_text()
    assert block is not None
    (tmp_path / "deployment.hcl").write_text(re.sub(r"tee \{.*?\n\}\n", block[1], example, flags=re.DOTALL))
    assert (guide,) == tuple(load(tmp_path / "deployment.hcl").policy.tee.platforms)


class _Alone(fake_appliance.SnpSource):
    """A host that passes no certificates to its guest."""

    def collect(self, report_data: bytes) -> ReportWithCollateral:
        return ReportWithCollateral(super().collect(report_data).report)


@pytest.mark.parametrize("platform", ["sev-snp", "tdx"])
def test_from_nothing_to_verified_as_the_guides_say(platform: str, tmp_path: Path,
                                                    capsys: pytest.CaptureFixture[str]) -> None:
    """Save the evidence of an appliance that could not be checked, fetch what it lacks, and verify the running one."""
    amd, intel = FakeAmd("Genoa"), FakeIntel()
    root, answers = ((amd.ark, fake_services.amd(amd)) if platform == "sev-snp" else
                     (intel.root, fake_services.intel(intel)))
    policy = fake_appliance.write_policy(
        tmp_path, platform, evidence="sev_snp {\n min_tcb { snp = 10 }\n }" if platform == "sev-snp" else "")
    loaded = load(policy)
    source = (_Alone(amd, host_data(loaded.digest)) if platform == "sev-snp" else
              fake_appliance.TdxSource(intel, loaded.digest))
    (tmp_path / "root.pem").write_bytes(root.public_bytes(Encoding.PEM))
    (tmp_path / "measurements.json").write_bytes(fake_appliance.measured().to_json())
    trusted, saved = ["--unsafe-root", str(tmp_path / "root.pem"), *AT], str(tmp_path / "evidence.json")
    server = FakeAppliance(fake_appliance.attestor(source, loaded), tmp_path)
    verify = ["verify", server.url, "--policy", str(policy), "--measurements", str(tmp_path / "measurements.json"),
              "--measurements-unsigned", *trusted]
    try:
        assert 2 == main([*verify, "--save", saved])
        assert "appliance collateral fetch" in capsys.readouterr().out
        with fake_services.serving(answers) as (url, _):
            fetched = main(["collateral", "fetch", saved, "-o", str(tmp_path / "collateral"), "--from", url, *trusted])
        assert 0 == fetched
        assert "verdict: GENUINE" in capsys.readouterr().out
        assert 0 == main([*verify, "--collateral", str(tmp_path / "collateral")])
    finally:
        server.stop()


def test_files_and_evidence_survive_mutations() -> None:
    """A hundred and more mutations of answers and evidence raise nothing else, and nothing false verifies."""
    for seed in collateral_fuzz.seeds():
        collateral_fuzz.fuzz(seed)
    _, finding = driver.run(collateral_fuzz.fuzz, collateral_fuzz.seeds(), seconds=0, seed=1, least=150)
    assert finding is None, finding


def _due(words: list[str], url: str, folder: Path, at: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, Any]:
    code = main([*words, "-o", str(folder), "--from", url, "--at", at, "--if-due"])
    return code, json.loads(capsys.readouterr().out)


def test_only_what_is_due_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """AMD's list of 47 days: not a day after it was fetched, but 14 days before its end, or damaged."""
    fake = FakeAmd("Genoa")
    short = fake.crl(start=NOW - timedelta(days=1), end=NOW + timedelta(days=46)).public_bytes(Encoding.DER)
    answers = {url: [Answer(short)] if url.endswith("/crl") else known
               for url, known in fake_services.amd(fake).items()}
    words, out = _files(tmp_path, fake.report(), fake.ark), tmp_path / "out"
    listed, = (url for url in answers if url.endswith("/crl"))
    with fake_services.serving(answers) as (url, asked):
        def fetched(days: int) -> list[str]:
            asked.clear()
            code, found = _due(words, url, out, f"{NOW + timedelta(days=days):%Y-%m-%dT%H:%M:%SZ}", capsys)
            assert (0, 3) == (code, len(found["fetched"])), found
            assert 3 - len(asked) == sum("good_until" in each for each in found["fetched"])
            return list(asked)

        assert 3 == len(fetched(0))
        assert [] == fetched(1)
        assert [] == fetched(31)
        assert [listed] == fetched(33)
        for file in out.glob("*crl*"):
            file.write_bytes(short[:-9])
        assert [listed] == fetched(1)


@pytest.mark.parametrize(("days", "soon"), [(1, False), (31, False), (33, True), (45, True)])
def test_a_list_that_ends_soon_is_told(days: int, soon: bool) -> None:
    """From 14 days before its end, while it still counts."""
    fake = FakeAmd()
    at, known = NOW + timedelta(days=days), fake.collateral()
    known.crls.append(fake.crl(start=NOW - timedelta(days=1), end=NOW + timedelta(days=46)))
    found = examine(Material(fake.report(), Path("x"), known, roots=replace(VENDORS, amd=fake.roots)), at=at)
    told = [each for each in found.warnings if "the list ends soon, on 2026-07-17" in each]
    assert ("genuine", soon) == (found.verdict, bool(told)), found.warnings


@pytest.mark.parametrize(("days", "soon"), [(1, False), (18, False), (20, True), (28, True)])
def test_intels_documents_that_end_soon_are_told(days: int, soon: bool) -> None:
    """They live for 30 days: in the last ten."""
    fake = FakeIntel()
    roots = replace(VENDORS, intel=walks.fingerprint(fake.root))
    found = examine(Material(fake.quote(), Path("x"), fake.collateral(), roots=roots), at=NOW + timedelta(days=days))
    assert ("genuine", soon) == (found.verdict, any("COLLATERAL: a part of Intel's ends soon, on 2026-06-30" in each
                                                    for each in found.warnings)), found.warnings


def test_intels_early_documents_are_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By `update=early`, of both documents: a machine that is up to date may be out of date by them."""
    fake = FakeIntel()
    early = FakeIntel({"status": "OutOfDate", "info_number": 18, "qe_number": 18})
    early.__dict__["root"] = fake.root
    answers = {f"{url}{'&' if '?' in url else '?'}update=early" if url.startswith("/tdx") else url: known
               for url, known in fake_services.intel(early).items()}
    words = _files(tmp_path, fake.quote(), fake.root)
    with fake_services.serving({**fake_services.intel(fake), **answers}) as (url, asked):
        for update, status in (("standard", "UpToDate"), ("early", "OutOfDate")):
            asked.clear()
            code, found = _fetch([*words, "--update", update], url, tmp_path / update, capsys)
            assert (0, status) == (code, found["evidence"]["claims"]["claims"]["TCB status"])
            assert (2 if update == "early" else 0) == sum(each.endswith("update=early") for each in asked)


def test_amd_has_no_early_documents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is refused, and nothing is fetched; nor does --print know what is due."""
    file = tmp_path / "report.bin"
    file.write_bytes(FakeAmd().report())
    assert 2 == main(["collateral", "fetch", str(file), "--print", "--update", "early"])
    assert "only Intel" in capsys.readouterr().err
    assert 2 == main(["collateral", "fetch", str(file), "--print", "--if-due"])
    assert "--if-due" in capsys.readouterr().err
