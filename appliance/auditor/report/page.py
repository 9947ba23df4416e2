"""The page: claims, figures, controls, and what the pack has and lacks, in the order one reads it.

It has no script, and its own policy forbids the browser to fetch anything. The same pack and the
same judge give the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from appliance import packaged
from appliance.auditor.archive.members import KINDS
from appliance.auditor.claims import controls, image
from appliance.auditor.claims.case import Case, LackingError
from appliance.auditor.claims.claim import Claimed
from appliance.auditor.claims.controls import Framework, Judged
from appliance.auditor.claims.table import CLAIMS, GROUPS
from appliance.auditor.report import charts, figures, leakage, signing, span
from appliance.auditor.report.engagement import Engagement
from appliance.auditor.report.figures import Figures
from appliance.codec.printable import plain, quantity
from appliance.errors import ApplianceError

_STYLE = "auditor/report/page.css"
_WORDS = {"holds": ("✓ shown", "holds"), "fails": ("✗ fails", "fails"), "not checked": ("○ not shown", "open")}
_STANDS = {"covered": ("✓ covered", "covered"), "covered in part": ("◐ covered in part", "covered"),
           "not covered": ("○ not covered", "open"), "failed": ("✗ failed", "fails")}
_NOT_PROVED = (
    "Times in the log are the host's. Their order is proved, their distance from each other is not. A timestamp "
    "authority, where there is one, says by when records existed, and not since when.",
    "Records after the last signed checkpoint may be missing, unless a checkpoint from outside knows them.",
    "The log tells of requests that reached the appliance. A host can always keep requests from it.",
    "An API key shows who holds it, and no person.",
    "Answers may be wrong. Evidence shows which model gave them, and nothing of their truth.",
    "This report is its maker's word. Make your own of the same pack: appliance audit pack verify PACK --report FILE.")


def page(case: Case, findings: Mapping[str, Claimed], frameworks: Sequence[tuple[Framework, list[Judged]]],
         pack_sha256: str | None = None, about: Engagement | None = None) -> bytes:
    """Return the report on a case, in UTF-8: the packer's own, or a judge's on a pack of this
    digest.

    A judge's report ends in a place to sign, on what `about` says."""
    title = f"Audit pack: {_deployment(case)}"
    style = packaged.content(_STYLE, "the report's style sheet").decode("utf-8")
    body = [f"<h1>{_text(title)}</h1>", *_head(case, findings, pack_sha256), *_claims(findings), *_happened(case),
            *leakage.section(case), *(part for each in frameworks for part in _framework(*each, findings)),
            *_members(case), *_parts(case),
            "<h2>What this does not show</h2><ul>", *(f"<li>{_text(each)}</li>" for each in _NOT_PROVED), "</ul>"]
    if pack_sha256 is not None:
        body += signing.block(case, findings, pack_sha256, about or Engagement())
    return ('<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; style-src \'unsafe-inline\'">'
            f"<title>{_text(title)}</title><style>\n{style}</style></head>\n<body><main>\n"
            + "\n".join(body) + "\n</main></body></html>\n").encode()


def _text(text: str) -> str:
    """Text that may be a stranger's, for a page."""
    return escape(plain(text, 2000))


def _mark(words: tuple[str, str]) -> str:
    return f'<span class="mark {words[1]}">{words[0]}</span>'


def _deployment(case: Case) -> str:
    try:
        return case.policy.policy.appliance.name
    except (LackingError, ApplianceError):
        return "a deployment without a valid policy"


def _head(case: Case, findings: Mapping[str, Claimed], pack_sha256: str | None) -> list[str]:
    count = {outcome: sum(each.outcome == outcome for each in findings.values()) for outcome in _WORDS}
    tally = "".join(f"<li><b>{count[outcome]}</b>{_mark(_WORDS[outcome])}</li>" for outcome in _WORDS)
    whose = ("by the packer, who also chose that time" if pack_sha256 is None
             else f"by whoever made this report, from the pack with SHA-256 {pack_sha256}")
    lines = [f'<p class="soft">Judged as of {case.given.at:%Y-%m-%dT%H:%M:%SZ} {whose}.</p>',
             f'<ul class="tally">{tally}</ul>']
    lines += [f'<p class="warning">{_text(each)}.</p>' for each in span.warnings(case)]
    if count["fails"]:
        lines.append(f'<p class="warning">{quantity(count["fails"], "claim")} failed: evidence in this pack speaks '
                     "against that.</p>")
    if findings["evidence-verified"].outcome != "holds":
        lines.append('<p class="warning">No evidence here shows that genuine hardware, closed to its host, ran this '
                     "appliance. All else is the operator's word.</p>")
    return lines


def _claims(findings: Mapping[str, Claimed]) -> list[str]:
    lines = ["<h2>Claims</h2>"]
    for group, claims in GROUPS:
        lines += [f"<h3>{group}</h3>", '<ul class="list">']
        for each in claims:
            found = findings[each.name]
            detail = f'<p class="soft">{_text(found.detail)}</p>' if found.detail else ""
            lines.append(f'<li>{_mark(_WORDS[found.outcome])}<p id="claim-{each.name}">{_text(each.says)} '
                         f"<code>{each.name}</code></p>{detail}</li>")
        lines.append("</ul>")
    return lines


def _happened(case: Case) -> list[str]:
    try:
        found = figures.of(case.records)
    except (LackingError, ApplianceError):
        return ["<h2>What happened</h2><p>The pack has no log that can be read.</p>"]
    lines = ["<h2>What happened</h2>",
             f"<p>{quantity(len(case.records), 'record')} from {_text(found.first)} to {_text(found.last)} by the "
             f"host's clock, {quantity(found.requests, 'request')} among them.</p>",
             '<div class="charts">', *_charts(found), "</div>"]
    rows = "".join(f"<tr><td>{each.epoch}</td><td>{_text(each.opened)}</td><td>{_text(each.version)}</td>"
                   f"<td>{each.records}</td><td>{each.ended}</td></tr>" for each in found.boots)
    names = "".join(f'<th scope="col">{each}</th>' for each in ("epoch", "opened", "version", "records", "ended"))
    return [*lines, "<h3>Boots</h3>", f"<table><thead><tr>{names}</tr></thead><tbody>{rows}</tbody></table>"]


def _charts(found: Figures) -> list[str]:
    per = f"{found.step // 86400} d" if found.step >= 86400 else f"{found.step // 60} min"
    return [charts.over_time("chart-done", f"Requests that were answered, per {per}", found.done),
            charts.over_time("chart-refused", f"Requests that were refused, per {per}", found.refused),
            *([charts.over_time("chart-ended", f"Requests that ended, answered or refused, per {per}", found.ended)]
              if found.ended else []),
            charts.rows("chart-latency", "Time of whole requests", found.latencies),
            charts.rows("chart-codes", "Refusals by their code", found.codes),
            charts.rows("chart-finish", "Answers by how they ended", found.finishes),
            charts.rows("chart-endpoints", "Requests by endpoint", found.endpoints),
            charts.rows("chart-boots", "Records by boot", tuple(
                (f"epoch {each.epoch}", each.records) for each in found.boots[-12:]))]


def _framework(framework: Framework, judged: list[Judged], findings: Mapping[str, Claimed]) -> list[str]:
    counts = controls.counts(judged)
    told = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    lines = [f"<h2>{_text(framework.framework)}</h2>", f'<p class="soft">{_text(framework.source)}</p>']
    if framework.note:
        lines.append(f"<p>{_text(framework.note)}</p>")
    lines += [f"<p>{told}.</p>", '<ul class="list">']
    for each in judged:
        lines.append("<li>" + "".join(_control(each, findings)) + "</li>")
    return [*lines, "</ul>"]


def _control(judged: Judged, findings: Mapping[str, Claimed]) -> list[str]:
    control = judged.control
    parts = [_mark(_STANDS[judged.status]), f"<p><b>{_text(control.id)}</b> {_text(control.title)}</p>"]
    if control.clause:
        parts.append(f"<blockquote>{_text(control.clause)}</blockquote>")
    if control.asks:
        parts.append(f"<p>Asks, in other words: {_text(control.asks)}</p>")
    if sentences := control.sentences(findings):
        parts.append(f"<p>{' '.join(map(_text, sentences))}</p>")
    if control.shows and judged.status in ("covered", "covered in part") and not any(
            findings[each].but for each in control.rests_on):
        parts.append(f'<p class="soft">In the words of this mapping: {_text(control.shows)}</p>')
    if control.claims:
        parts.append('<p class="soft">Rests on: ' + ", ".join(
            f'<a href="#claim-{name}" title="{_text(CLAIMS[name].says)}">{name}</a>: '
            f"{_WORDS[findings[name].outcome][0]}" for name in control.rests_on) + ".</p>")
    if control.kept_days is not None:
        days = quantity(control.kept_days, "day")
        parts.append(f'<p class="soft">Asks that records of requests are kept for {days}.</p>')
    if control.remains:
        parts.append(f'<p class="soft">Not shown here: {_text(control.remains)}</p>')
    return parts


def _members(case: Case) -> list[str]:
    lines = ["<h2>What the pack has, and lacks</h2>", '<ul class="list">']
    for kind in KINDS:
        if kind.name in ("report", "controls") or kind.optional:
            continue
        found = [name for name in case.members if kind.holds(name)]
        size = sum(len(case.members[name]) for name in found)
        mark = _mark(("✓ here", "holds") if found else ("○ missing", "open"))
        told = (f"{quantity(len(found), 'file')}, {quantity(size, 'byte')}" if found
                else f"It would show {kind.needed_for}.")
        lines.append(f'<li>{mark}<p>{_text(kind.what)}</p><p class="soft">{_text(told)}</p></li>')
    return [*lines, "</ul>"]


def _parts(case: Case) -> list[str]:
    found = image.described(case)
    if not found:
        return []
    rows = "".join(f"<tr><td>{_text(kind)}</td><td>{_text(name)}</td><td>{_text(version)}</td></tr>"
                   for kind, name, version in found)
    return ["<h2>What the image is made of</h2>",
            f"<details><summary>{quantity(len(found), 'component')}</summary><table><thead>"
            '<tr><th scope="col">kind</th><th scope="col">name</th><th scope="col">version</th></tr></thead>'
            f"<tbody>{rows}</tbody></table></details>"]
