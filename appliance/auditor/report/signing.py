"""The last part of a judge's own report: what it is about, and a place to sign."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from appliance.attestation.findings import Finding
from appliance.auditor.claims.case import Case, LackingError
from appliance.auditor.report.engagement import Engagement, spanned
from appliance.codec.printable import plain
from appliance.errors import ApplianceError

_BLANKS = ("Name", "Function", "Place and date", "Signature")


def block(case: Case, findings: Mapping[str, Finding], pack_sha256: str, about: Engagement) -> list[str]:
    """Lines of HTML. The opinion is a text of the signer's own, and not made here."""
    counts = {word: sum(each.outcome == outcome for each in findings.values())
              for outcome, word in (("holds", "shown"), ("not checked", "not shown"), ("fails", "failed"))}
    facts = {
        "Entity": about.entity or "not named", "Period": "not named" if about.period is None else about.period.text,
        **({} if about.period is None else {"Records": _reach(case, about)}),
        "Pack, SHA-256": pack_sha256, "Judged as of": f"{case.given.at:%Y-%m-%dT%H:%M:%SZ}",
        "Claims": ", ".join(f"{count} {word}" for word, count in counts.items())}
    return ["<h2>For signature</h2>", _rows(facts),
            "<p>This page says what evidence shows. What the signer looked at elsewhere, and the opinion, are the "
            "signer's own words.</p>", _rows(dict.fromkeys(_BLANKS, ""), "sign")]


def _reach(case: Case, about: Engagement) -> str:
    try:
        return "" if about.period is None else spanned(case.as_written, about.period)
    except (LackingError, ApplianceError):
        return "The pack has no log that can be read."


def _rows(facts: Mapping[str, str], kind: str = "facts") -> str:
    rows = "".join(f'<tr><th scope="row">{escape(name)}</th><td>{escape(plain(value, 500))}</td></tr>'
                   for name, value in facts.items())
    return f'<table class="{kind}"><tbody>{rows}</tbody></table>'
