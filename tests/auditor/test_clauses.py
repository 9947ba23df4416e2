"""Mappings of controls: quotes are as their sources have them, and no control rests on less than it says."""

from __future__ import annotations

import json
import re

import pytest

from appliance.auditor.claims import controls, table
from appliance.auditor.claims.controls import Control
from tests.support.expected import ROOT

CLAUSES = ROOT / "tests/goldens/clauses"
SOURCES = {"eu-ai-act-12": "eu-ai-act", "eu-ai-act-records": "eu-ai-act", "gdpr": "gdpr", "hipaa": "hipaa",
           "hipaa-administrative": "hipaa", "iso-42001": None, "nist-800-53": "nist-800-53", "soc2": None}
FRAMEWORKS = {path.stem: controls.parse(path.read_bytes(), path.name)
              for path in sorted((ROOT / "appliance/auditor/controls").glob("*.toml"))}
ALL = [(name, each) for name, framework in FRAMEWORKS.items() for each in framework.controls]
IDS = [f"{name}-{each.id}" for name, each in ALL]


def _plain(text: str) -> str:
    """Text without what copies differ in: blanks, marks of quotation, and who defines an assignment."""
    text = re.sub(r"\[Assignment: [^\]]*\]", "[Assignment]", text.replace("’", "'"))
    return " ".join(re.sub(r"\s+", " ", text).split()).rstrip(" .;,")


def _public(name: str) -> dict[str, str]:
    lines = (CLAUSES / f"{name}.txt").read_text("utf-8").splitlines()
    return dict(line.split(" | ", 1) for line in lines if not line.startswith("#"))


def test_each_framework_has_its_source_or_none_that_may_be_quoted() -> None:
    """A new mapping is checked, too."""
    assert set(SOURCES) == set(FRAMEWORKS)


@pytest.mark.parametrize(("name", "control"), ALL, ids=IDS)
def test_a_quote_is_as_its_source_has_it(name: str, control: Control) -> None:
    """In the clause that the control names, or in one that it is a part of; nothing is quoted where nothing may be."""
    source = SOURCES[name]
    if control.clause is None:
        return
    assert source is not None, "this framework's text may not be quoted"
    public = _public(source)
    place = max((each for each in public if control.id.startswith(each)), key=len, default=None)
    assert place is not None, control.id
    assert _plain(control.clause) in _plain(public[place])


def test_a_wrong_quote_is_found() -> None:
    """One word that is another."""
    found = _plain(_public("hipaa")["164.312(b)"])
    assert _plain("Implement hardware, software, and/or procedural mechanisms that record") in found
    assert _plain("Implement hardware, software, and/or procedural mechanisms that prevent") not in found


@pytest.mark.parametrize(("name", "control"), ALL, ids=IDS)
def test_a_control_names_what_is_left(name: str, control: Control) -> None:
    """Each is on an organisation, and evidence is of one system: none is covered as a whole."""
    assert control.remains
    assert control.part or not control.claims


@pytest.mark.parametrize(("name", "control"), ALL, ids=IDS)
def test_what_is_said_of_hardware_rests_on_verified_evidence(name: str, control: Control) -> None:
    """Simulated evidence bears out none of them."""
    if any(each.startswith("evidence-") for each in control.claims):
        assert "evidence-verified" in control.claims


# Words of a sentence, and the claims of which one must be there for it.
NEEDED = {
    r"approver": {"policy-approved"}, r"\b(host|hardware|measured software|measured machine)\b": {"evidence-verified"},
    r"\bTLS\b|[Cc]onnections": {"policy-transport"}, r"API key|tenant": {"policy-tenants", "log-tenants"},
    r"\b(whole|complete)\b": {"log-whole"}, r"dropped": {"log-lossless"}, r"refus": {"log-refusals"},
    r"[Cc]hanges of|changes are recorded|was loaded is recorded": {"log-changes"},
    r"destr|unreadable": {"log-expired", "log-kept"}, r"receipt": {"receipts-hold"},
    r"known answers": {"log-self-test"}, r"bill of materials|[Aa]rchives?\b": {"sbom-materials"},
    r"provenance": {"provenance-signed", "provenance-image"}, r"revoked": {"release-standing"},
    r"redact": {"policy-redaction"}, r"limited for each key": {"policy-limits"},
    r"held outside": {"log-held"}, r"sealed|lie encrypted": {"policy-sealed", "log-expired"},
    r"request that began|[Rr]equests with their": {"log-requests"}, r"pinned|policy pins": {"evidence-models"},
    r"predicted|measured launch|hardware measured": {"evidence-measurement"}, r"nonce": {"evidence-fresh"},
    r"debug": {"evidence-debug"}, r"proved": {"log-whole", "log-extracts", "log-dated"},
    r"at rest|on a disk\b": {"policy-memory"}, r"in its memory|never": {"policy-memory"},
    r"always|\bevery(?! listener)\b": set(),
}


@pytest.mark.parametrize(("name", "control"), ALL, ids=IDS)
def test_a_sentence_says_nothing_without_its_claim(name: str, control: Control) -> None:
    """By its words. An empty set is for words that no claim bears out."""
    for words, claims in NEEDED.items():
        if control.shows and re.search(words, control.shows):
            assert claims & set(control.claims), f"{words}: {control.shows}"


def test_no_text_of_aicpa_and_iso_is_quoted() -> None:
    """Each criterion of AICPA is told in other words."""
    assert all(each.clause is None for name in ("soc2", "iso-42001") for each in FRAMEWORKS[name].controls)
    assert all(each.asks for each in FRAMEWORKS["soc2"].controls)


def test_what_people_sign_for_is_there() -> None:
    """The clauses that auditors asked for."""
    ids = {name: {each.id for each in framework.controls} for name, framework in FRAMEWORKS.items()}
    assert {"AU-2", "AU-4", "AU-5", "AU-6", "AU-7", "IA-2", "IA-5", "SC-13"} < ids["nist-800-53"]
    assert {"18(1)", "19(1)", "26(5)", "26(6)", "72(1)"} < ids["eu-ai-act-records"]
    assert {"164.308(a)(1)(ii)(D)", "164.316(b)(2)(i)"} < ids["hipaa-administrative"]
    assert {"PI1.1", "PI1.5", "C1.1", "C1.2", "A1.1", "A1.2", "A1.3"} < ids["soc2"]
    assert {"5(1)(c)", "17", "30(1)", "32(1)(a)"} < ids["gdpr"]
    assert "2 December 2027" in str(FRAMEWORKS["eu-ai-act-records"].note)
    assert "2026/1744" in str(FRAMEWORKS["eu-ai-act-records"].note)


def test_no_validated_module_is_claimed() -> None:
    """SC-13 says so, and of which library: the wheel's own bill has OpenSSL, as built without modules."""
    control = next(each for each in FRAMEWORKS["nist-800-53"].controls if each.id == "SC-13")
    assert "No validation by FIPS 140-3 is claimed" in str(control.remains)
    parts = [json.loads(line) for line in (ROOT / "image/inside.jsonl").read_text("utf-8").splitlines()]
    assert ["pypi/cryptography"] == [each["in"] for each in parts if each["purl"].startswith("pkg:generic/openssl@")]


def test_a_mapping_has_words_of_its_own() -> None:
    """None repeats a claim's sentence: a report has that one beside it."""
    said = {each.says for each in table.CLAIMS.values()}
    assert [] == [each.id for _, each in ALL if each.shows in said]
