"""The load of one appliance as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from appliance.codec.printable import plain
from appliance.monitoring.load import Load, bound, nbytes, span

MODELS = ("model", "wait", "work", "pages", "prompt/s", "answer/s", "first p50", "first p95", "gap p50", "gap p95")
TENANTS = ("tenant", "requests/min", "wait", "quota")


def frame(load: Load) -> str:
    """Return all lines of a picture: verdict, requests, models, tenants, the log."""
    parts = (_head(load), _requests(load), _table(MODELS, _models(load)), _table(TENANTS, _tenants(load)), _log(load))
    return "\n\n".join("\n".join(lines) for part in parts if (lines := [plain(line) for line in part]))


def _head(load: Load) -> Iterator[str]:
    now = load.now
    since = now.time - now.sum("process_start_time_seconds")
    yield f"{now.verdict.target}  {now.verdict.status.upper()}  {now.health.get('status')}  up {span(since)}"
    about = next((dict(labels) for labels in now.values("appliance_info")), {})
    yield (f"version {about.get('version')}  platform {about.get('platform')}  policy "
           f"{about.get('policy_sha384', '')[:16]}…  generation {now.sum('appliance_generation'):.0f}")


def _requests(load: Load) -> Iterator[str]:
    statuses = {status: load.rate("appliance_requests_total", status=status) * 60
                for status in load.now.labels("appliance_requests_total", "status")}
    told = ", ".join(f"{status}: {rate:.1f}" for status, rate in statuses.items() if rate)
    yield (f"requests a minute {sum(statuses.values()):.1f}{f' ({told})' if told else ''}  under way "
           f"{load.now.sum('appliance_requests_in_flight'):.0f}  in {span(load.seconds)}")
    refused = {code: count for code in load.now.labels("appliance_refusals_total", "code")
               if (count := load.count("appliance_refusals_total", code=code))}
    if refused:
        yield "refused " + ", ".join(f"{code} {count:.0f}" for code, count in refused.items())


def _models(load: Load) -> Iterator[Sequence[str]]:
    now = load.now
    for model in now.labels("appliance_cache_slots", "model"):
        working, places, claimed, pages = (now.sum(f"appliance_cache_{name}", model=model) for name in (
            "slots_used", "slots", "pages_claimed", "pages"))
        quantiles = [bound(load.quantile(f"appliance_{name}_seconds", part, model=model))
                     for name in ("first_token", "token_gap") for part in (0.5, 0.95)]
        rates = [f"{load.rate('appliance_tokens_total', model=model, kind=kind):.1f}" for kind in (
            "prompt", "completion")]
        failed = " FAILED" if now.sum("appliance_model_failed", model=model) else ""
        waiting = now.sum("appliance_requests_waiting", model=model)
        share = f"{claimed / pages:.0%}" if pages else "-"
        yield model + failed, f"{waiting:.0f}", f"{working:.0f}/{places:.0f}", share, *rates, *quantiles


def _tenants(load: Load) -> Iterator[Sequence[str]]:
    for tenant in load.now.labels("appliance_tenant_requests_total", "tenant"):
        used = {dict(labels)["window"]: value
                for labels, value in load.now.values("appliance_quota_used_ratio", tenant=tenant).items()}
        yield (tenant, f"{load.rate('appliance_tenant_requests_total', tenant=tenant) * 60:.1f}",
               f"{load.now.sum('appliance_tenant_requests_waiting', tenant=tenant):.0f}",
               ", ".join(f"{window} {value:.0%}" for window, value in used.items()) or "-")


def _log(load: Load) -> Iterator[str]:
    for kind in ("checkpoint", "cosignature", "timestamp"):
        for witness, age in load.age(kind).items():
            yield f"{kind}{f' of {witness}' if witness else ''} {span(age)} ago"
    if free := load.now.samples.get("appliance_state_free_bytes"):
        yield f"state disk: {nbytes(sum(free.values()))} left for the log"
    ends = load.now.values("appliance_certificate_end_timestamp_seconds")
    for labels, end in ends.items():
        yield f"certificate of {dict(labels)['listener']} ends in {span(end - load.now.time)}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Lines with columns of one width; none where there are no rows."""
    found = [head, *rows]
    if len(found) > 1:
        widths = [max(len(row[column]) for row in found) for column in range(len(head))]
        for row in found:
            first, *others = (cell.ljust(width) if not column else cell.rjust(width)
                              for column, (cell, width) in enumerate(zip(row, widths, strict=True)))
            yield "  ".join((first, *others))
