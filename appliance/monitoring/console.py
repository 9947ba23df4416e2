"""One page on one appliance, for whoever operates it and whoever audits it. It has no script, and
nothing in it comes from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from appliance import packaged
from appliance.client.verdict import SIMULATED, Verdict, good
from appliance.codec.printable import plain
from appliance.monitoring.load import Load, bound, nbytes, span
from appliance.monitoring.policywords import sentences
from appliance.policy.schema import Policy

STYLE = "/console.css"
HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
           "form-action 'none'", "X-Frame-Options": "DENY"}
SECTIONS = (("verdict", "Verdict"), ("policy", "Policy"), ("load", "Load"), ("models", "Models"), ("boot", "Boot"),
            ("audit", "Audit"))
OUTCOMES = (("What it proves", "holds"), ("What fails", "fails"), ("What it does not prove", "not checked"))


def style() -> bytes:
    """Return the page's style sheet."""
    return packaged.content("monitoring/console.css", "the console's style sheet")


def page(load: Load, policy: Policy, *, seconds: float) -> bytes:
    """Return the page in UTF-8; a browser asks for it again after so many seconds."""
    name, parts = policy.appliance.name, [
        _verdict(load.now.verdict), _policy(policy), _load(load), _models(load), _boot(load), _audit(load)]
    links = "".join(f'<li><a href="#{key}">{title}</a></li>' for key, title in SECTIONS)
    body = [f"<h1>{_text(name)}</h1>", f'<p class="soft">{_text(load.now.verdict.target)}, looked at '
            f"{load.now.verdict.at:%Y-%m-%d %H:%M:%S} UTC</p>", f'<nav aria-label="Parts"><ul>{links}</ul></nav>']
    for (key, title), part in zip(SECTIONS, parts, strict=True):
        body += [f'<section id="{key}"><h2>{title}</h2>', *part, "</section>"]
    return _whole(name, body, seconds)


def failure(error: str, *, seconds: float) -> bytes:
    """Return the page that stands in where nothing could be read."""
    return _whole("Appliance", ["<h1>Appliance</h1>", f'<div class="verdict bad"><b>not read</b><p>{_text(error)}</p>'
                                "</div>", "<p>Nothing that was shown before is shown on: it may be old.</p>"], seconds)


def _whole(title: str, body: Iterable[str], seconds: float) -> bytes:
    return ('<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f'<meta http-equiv="refresh" content="{seconds:.0f}"><link rel="stylesheet" href="{STYLE}">'
            f"<title>{_text(title)}</title></head>\n<body><main>\n" + "\n".join(body) + "\n</main></body></html>\n"
            ).encode()


def _verdict(verdict: Verdict) -> Iterator[str]:
    mark = "good" if verdict.verified else "open" if verdict.exit_code > 3 else "bad"
    reason = verdict.reason or good(verdict.status)
    yield f'<div class="verdict {mark}"><b>{_text(verdict.status)}</b><p>{_text(reason)}</p></div>'
    simulated = verdict.status == SIMULATED
    for title, outcome in OUTCOMES:
        title = "Rules that hold by its own word" if simulated and outcome == "holds" else title
        found = [each for each in verdict.as_json()["findings"] if each["outcome"] == outcome]
        if found:
            yield f"<h3>{title}</h3><ul>"
            for each in found:
                detail = f" ({each['detail']})" if each["detail"] else ""
                yield f"<li>{_text(each['meaning'] + detail)}</li>"
            yield "</ul>"


def _policy(policy: Policy) -> Iterator[str]:
    yield "<ul>"
    yield from (f"<li>{_text(each)}</li>" for each in sentences(policy))
    yield "</ul>"


def _load(load: Load) -> Iterator[str]:
    now = load.now
    since = now.time - now.sum("process_start_time_seconds")
    yield '<ul class="tally">' + "".join(f"<li><b>{_text(value)}</b> {words}</li>" for value, words in (
        (str(now.health.get("status")), "state"), (span(since), "since the start"),
        (f"{load.rate('appliance_requests_total') * 60:.1f}", "requests a minute"),
        (f"{now.sum('appliance_requests_in_flight'):.0f}", "under way"),
        (f"{now.sum('appliance_requests_waiting'):.0f}", "wait for a place"),
        (f"{load.rate('appliance_tokens_total', kind='completion'):.1f}", "tokens of answers a second"))) + "</ul>"
    yield (f'<p class="soft">Rates are of the last {span(load.seconds)}. Counts and times are as the policy rounds '
           "them.</p>")
    yield from _table("Refusals since the boot, by code", ("code", "requests"), [
        (code, f"{count:.0f}") for code in now.labels("appliance_refusals_total", "code")
        if (count := now.sum("appliance_refusals_total", code=code))])
    yield from _table("Use of quotas, in tenths", ("tenant", "window", "used"), [
        (dict(labels)["tenant"], dict(labels)["window"], f"{value:.0%}")
        for labels, value in now.values("appliance_quota_used_ratio").items()])


def _models(load: Load) -> Iterator[str]:
    now = load.now
    head = ("model", "wait", "work", "first token, median", "gap, median", "state")
    yield from _table("Models that are loaded", head, [
        (model, f"{now.sum('appliance_requests_waiting', model=model):.0f}",
         f"{now.sum('appliance_cache_slots_used', model=model):.0f} of "
         f"{now.sum('appliance_cache_slots', model=model):.0f}",
         *(bound(load.quantile(f"appliance_{each}_seconds", 0.5, model=model)) for each in (
             "first_token", "token_gap")),
         "failed" if now.sum("appliance_model_failed", model=model) else "answers")
        for model in now.labels("appliance_cache_slots", "model")])
    yield from _table("Digests", ("model", "SHA-256"), [
        (str(each.get("name")), str(each.get("sha256"))) for each in _dicts(now.health.get("models"))])
    planned = sorted(now.values("appliance_memory_planned_bytes").items(), key=lambda each: -each[1])
    yield from _table("Memory, as the boot planned it", ("part", "model", "size"), [
        (dict(labels)["part"], dict(labels)["model"] or "all", nbytes(value)) for labels, value in planned])


def _boot(load: Load) -> Iterator[str]:
    steps = _dicts(load.now.health.get("boot"))
    yield from _table("Steps of the boot", ("step", "verdict", "time", "what"), [
        (str(each.get("step")), str(each.get("verdict")), f"{_number(each.get('duration_us')) / 1e6:.2f} s",
         str(each.get("detail") or "")) for each in steps])


def _audit(load: Load) -> Iterator[str]:
    rows = [(f"{kind} {witness}".strip(), f"{span(age)} ago") for kind in ("checkpoint", "cosignature", "timestamp")
            for witness, age in load.age(kind).items()]
    yield from _table("Last signed words of the log in this boot", ("what", "when"), rows)
    for free in load.now.values("appliance_state_free_bytes").values():
        yield f"<p>The state disk has {nbytes(free)} left for the log.</p>"
    if load.now.checkpoint.strip():
        yield f"<h3>Its head</h3><pre>{escape(chr(10).join(map(plain, load.now.checkpoint.splitlines())))}</pre>"
    else:
        yield "<p>No head of the log was signed in this boot yet.</p>"


def _table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table; nothing where it has no rows."""
    if rows:
        yield f'<div class="scroll" tabindex="0" role="region" aria-label="{caption}"><table>'
        yield f"<caption>{caption}</caption>"
        yield "<tr>" + "".join(f'<th scope="col">{each}</th>' for each in head) + "</tr>"
        yield from ("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        yield "</table></div>"


def _dicts(found: object) -> list[dict[str, object]]:
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _number(found: object) -> float:
    return float(found) if isinstance(found, int | float) else 0.0


def _text(text: str) -> str:
    """Text that may be a stranger's, for a page."""
    return escape(plain(text, 2000))
