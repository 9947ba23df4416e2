"""`examples/monitoring`: each query finds a metric of a live service, each alert fires for what it is about, and judges
from outside take the files: promtool, Prometheus, systemd."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.support import require, waiting
from tests.support.pages import ROOT
from tests.support.server import AUDITOR_KEY, TCP, Server, write_policy

FOLDER = ROOT / "examples/monitoring"
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text())
PANELS = {panel["title"]: panel for panel in DASHBOARD["panels"]}
QUERIES = [(title, each["expr"]) for title, panel in PANELS.items() for each in panel["targets"]]
ALERTS = {rule["alert"]: rule for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
          for rule in group["rules"]}
VLLM = {rule["record"]: rule["expr"] for group in yaml.safe_load((FOLDER / "vllm.yml").read_text())["groups"]
        for rule in group["rules"]}
NAME = re.compile(r"\b(?:appliance|process|vllm)[_:][a-z0-9_]+")
LISTENERS = TCP + """
  listen "attested" {
    kind = "ra-tls"
    port = 8443
  }"""
STATE = """
state {{
  device = "{device}"
  key {{
    provider = "file"
    path     = "{key}"
  }}
}}
"""
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}

# What vLLM's own dashboard asks for (examples/observability/prometheus_grafana/grafana.json, 2026), and what of it an
# appliance does not tell: lengths of single requests, and why answers ended.
THEIRS = {
    "vllm:e2e_request_latency_seconds_bucket", "vllm:e2e_request_latency_seconds_sum",
    "vllm:e2e_request_latency_seconds_count", "vllm:prompt_tokens_total", "vllm:generation_tokens_total",
    "vllm:time_per_output_token_seconds_bucket", "vllm:time_per_output_token_seconds_sum",
    "vllm:time_per_output_token_seconds_count", "vllm:num_requests_running", "vllm:num_requests_waiting",
    "vllm:time_to_first_token_seconds_bucket", "vllm:time_to_first_token_seconds_sum",
    "vllm:time_to_first_token_seconds_count", "vllm:kv_cache_usage_perc", "vllm:request_prompt_tokens_bucket",
    "vllm:request_generation_tokens_bucket", "vllm:request_success_total", "vllm:request_queue_time_seconds_sum",
    "vllm:request_prefill_time_seconds_sum", "vllm:request_decode_time_seconds_sum",
    "vllm:request_max_num_generation_tokens_sum"}
UNTOLD = {"vllm:request_prompt_tokens_bucket", "vllm:request_generation_tokens_bucket",
          "vllm:request_max_num_generation_tokens_sum"}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Server]:
    """A service with all that has metrics: attested listener, state disk, checkpoints, quota; it answered once."""
    folder = tmp_path_factory.mktemp("monitored")
    device = Path(f"/dev/shm/appliance-test-monitoring-{os.getpid()}")  # noqa: S108
    key = folder / "state.key"
    key.write_text("1f" * 32)
    key.chmod(0o600)
    with contextlib.ExitStack() as closing:
        closing.callback(lambda: device.unlink(missing_ok=True))
        device.write_bytes(b"")
        os.truncate(device, 4 << 20)
        policy = write_policy(folder, {"tiny": tiny_model}, schema=2, listeners=LISTENERS,
                              limits="tokens_per_day = 4000", audit='sink = "state"\n  checkpoint_interval = "1s"')
        policy.write_text(policy.read_text() + STATE.format(device=device, key=key))
        server = Server(policy, [tiny_model], log=Path("stdout"))
        closing.callback(server.stop)
        with server.wait_ready().http() as http:
            http.post("/v1/chat/completions", json=CHAT).raise_for_status()
        yield server


@pytest.fixture(scope="module")
def watched(running: Server) -> Iterator[tuple[str, str]]:
    """`appliance connect` and `appliance watch` before it; where each listens."""
    common = [running.url, "--policy", str(running.policy), "--accept", "simulated", "--json"]
    processes = [subprocess.Popen([sys.executable, "-m", "appliance", *words], stdout=out, stderr=err, text=True)
                 for words, out, err in (
                     (["connect", *common, "--listen", "127.0.0.1:0"], subprocess.DEVNULL, subprocess.PIPE),
                     (["watch", *common, "--every", "1", "--listen", "127.0.0.1:0"], subprocess.PIPE, None))]
    try:
        found = []
        for process in processes:
            lines = process.stderr or process.stdout
            assert lines is not None
            found.append(next(json.loads(line) for line in lines if '"ready"' in line)["listening"])
        yield found[0] + "/metrics", found[1]
    finally:
        for process in processes:
            process.terminate()
            process.communicate(timeout=60)


@pytest.fixture(scope="module")
def known(watched: tuple[str, str]) -> set[str]:
    """The names of all metrics that both give, and those of histograms' parts."""
    found = {"up"}
    for url, headers in zip(watched, ({"authorization": f"Bearer {AUDITOR_KEY}"}, {}), strict=True):
        for line in httpx.get(url, headers=headers, timeout=60, trust_env=False).raise_for_status().text.splitlines():
            if line.startswith("# TYPE "):
                _, _, name, kind = line.split()
                found |= {name + part for part in ("_bucket", "_sum", "_count")} if kind == "histogram" else {name}
    return found


def test_every_query_finds_a_metric_of_a_live_service(known: set[str]) -> None:
    """Of the dashboard, the alerts and the rules with vLLM's names."""
    asked = [*QUERIES, *((name, rule["expr"]) for name, rule in ALERTS.items()), *VLLM.items()]
    assert {} == {name: absent for name, expr in asked if (absent := {*NAME.findall(expr)} - known)}
    assert all(NAME.search(expr) or "up{" in expr for _, expr in asked)


def test_a_dashboard_of_vllm_is_answered() -> None:
    """All that it asks for has a rule, but for what an appliance does not tell."""
    assert UNTOLD == THEIRS - VLLM.keys()


def test_promtool_takes_the_files(tmp_path: Path) -> None:
    """The configuration with both files of rules; the key's place is one that is there."""
    require.tools("promtool", package="prometheus")
    for path in FOLDER.glob("*.yml"):
        text = path.read_text().replace("/etc/appliance/auditor.key", str(tmp_path / "key"))
        (tmp_path / path.name).write_text(text)
    (tmp_path / "key").write_text("sk-x")
    done = subprocess.run(["promtool", "check", "config", tmp_path / "prometheus.yml"], capture_output=True, text=True,
                          check=False)
    assert 0 == done.returncode, done.stdout + done.stderr
    assert [f"{len(ALERTS)} rules", f"{len(VLLM)} rules"] == re.findall(r"\d+ rules", done.stdout)


FIRES: dict[str, tuple[dict[str, str], dict[str, str]]] = {  # series of which it fires, and of which it does not
    "ApplianceNotVerified": ({'appliance_watch_verified{target="t"}': "0x400"},
                             {'appliance_watch_verified{target="t"}': "1x400"}),
    "ApplianceWatchStale": ({'appliance_watch_checked_timestamp_seconds{target="t"}': "0x400"},
                            {'appliance_watch_checked_timestamp_seconds{target="t"}': "0+60x400"}),
    "ApplianceCollateralEnds": ({"appliance_watch_collateral_end_timestamp_seconds": "250000x400"},
                                {"appliance_watch_collateral_end_timestamp_seconds": "900000x400"}),
    "ApplianceCertificateEnds": ({'appliance_certificate_end_timestamp_seconds{listener="l"}': "24000x400"},
                                 {'appliance_certificate_end_timestamp_seconds{listener="l"}': "99999x400"}),
    "AppliancePolicyChanged": ({'appliance_info{policy_sha384="a"}': "1x335 _x60",
                                'appliance_info{policy_sha384="b"}': "_x340 1x60"},
                               {'appliance_info{policy_sha384="a",platform="p"}': "1x400"}),
    "ApplianceDown": ({'up{job="appliance"}': "0x400"}, {'up{job="appliance"}': "1x400", 'up{job="x"}': "0x400"}),
    "ApplianceNotReady": ({"appliance_ready": "0x400"}, {"appliance_ready": "1x400"}),
    "ApplianceRestarted": ({'process_start_time_seconds{job="appliance"}': "5x353 9000x60"},
                           {'process_start_time_seconds{job="appliance"}': "5x400"}),
    "ApplianceModelFailed": ({'appliance_model_failed{model="m"}': "1x400"},
                             {'appliance_model_failed{model="m"}': "0x400"}),
    "ApplianceErrors": ({'appliance_requests_total{status="500"}': "0+1x400",
                         'appliance_requests_total{status="200"}': "0+9x400"},
                        {'appliance_requests_total{status="500"}': "0+1x400",
                         'appliance_requests_total{status="200"}': "0+99x400"}),
    "ApplianceQueueLong": ({'appliance_queue_seconds_bucket{le="30"}': "0x400",
                            'appliance_queue_seconds_bucket{le="60"}': "0+9x400",
                            'appliance_queue_seconds_bucket{le="+Inf"}': "0+9x400"},
                           {'appliance_queue_seconds_bucket{le="30"}': "0+9x400",
                            'appliance_queue_seconds_bucket{le="60"}': "0+9x400",
                            'appliance_queue_seconds_bucket{le="+Inf"}': "0+9x400"}),
    "AppliancePassesLate": ({'appliance_late_passes{model="m"}': "0+1x400"},
                            {'appliance_late_passes{model="m"}': "7x400"}),
    "ApplianceQuotaNearlyUsed": ({'appliance_quota_used_ratio{window="day"}': "1x400"},
                                 {'appliance_quota_used_ratio{window="day"}': "0.9x400",
                                  'appliance_quota_used_ratio{window="minute"}': "1x400"}),
    "ApplianceStateFull": ({'appliance_state_room{room="full"}': "1x400"},
                           {'appliance_state_room{room="full"}': "0x400"}),
    "ApplianceStateReserve": ({'appliance_state_room{room="reserve"}': "1x400"},
                              {'appliance_state_room{room="ample"}': "1x400"}),
    "ApplianceStateFills": ({"appliance_state_free_bytes": "1000000-1000x400"},
                            {"appliance_state_free_bytes": "1000000000-1000x400"}),
    "ApplianceCheckpointOld": ({'appliance_audit_last_timestamp_seconds{kind="checkpoint",instance="i"}': "0x400",
                                'appliance_tenant_requests_total{instance="i"}': "0+1x400"},
                               {'appliance_audit_last_timestamp_seconds{kind="checkpoint",instance="i"}': "0x400",
                                'appliance_tenant_requests_total{instance="i"}': "7x400"}),
    "ApplianceCosignatureOld": ({'appliance_audit_last_timestamp_seconds{kind="cosignature"}': "-86400x400"},
                                {'appliance_audit_last_timestamp_seconds{kind="cosignature"}': "0x400"}),
    "ApplianceTimestampOld": ({'appliance_audit_last_timestamp_seconds{kind="timestamp"}': "-86400x400"},
                              {'appliance_audit_last_timestamp_seconds{kind="timestamp"}': "0x400"}),
}


def test_each_alert_fires_for_what_it_is_about(tmp_path: Path) -> None:
    """By promtool's own tests of rules: each alert with series of which it fires, and with some of which it does not.
    They are looked at after six hours."""
    require.tools("promtool", package="prometheus")
    assert ALERTS.keys() == FIRES.keys()
    tests = [{"name": f"{name} {'fires' if fires else 'is quiet'}", "interval": "1m", "input_series": [
        {"series": series, "values": values} for series, values in given.items()], "promql_expr_test": [{
            "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)', "eval_time": "6h",
            "exp_samples": [{"labels": "{}", "value": int(fires)}]}]}
        for name, pair in FIRES.items() for given, fires in zip(pair, (True, False), strict=True)]
    path = tmp_path / "tests.yml"
    path.write_text(yaml.safe_dump({"rule_files": [str(FOLDER / "alerts.yml")], "evaluation_interval": "5m",
                                    "tests": tests}))
    done = subprocess.run(["promtool", "test", "rules", path], capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stdout + done.stderr


EMPTY = {"Refusals", "Age of the audit log's signed words"}  # panels that may have nothing to show of one answer


@pytest.mark.slow
def test_prometheus_answers_every_query_of_the_dashboard(watched: tuple[str, str], tmp_path: Path) -> None:
    """A real one scrapes the service through `connect` and the watch, and has something for every panel; the rules with
    vLLM's names give series with vLLM's label."""
    require.tools("prometheus", package="prometheus")
    (tmp_path / "key").write_text(AUDITOR_KEY)
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(FOLDER / name) for name in config["rule_files"]]
    for job, url in zip(config["scrape_configs"], watched, strict=True):
        job["static_configs"] = [{"targets": [httpx.URL(url).netloc.decode()]}]
    config["scrape_configs"][0]["authorization"] = {"credentials_file": str(tmp_path / "key")}
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = shutil.which("prometheus") or ""
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen(
            [program, f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data",
             f"--web.listen-address=127.0.0.1:{port}"], stdout=said, stderr=said)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as http:
            def ask(expr: str) -> list[Any]:
                expr = expr.replace("$__rate_interval", "1m").replace("$instance", ".*")
                with contextlib.suppress(httpx.TransportError):
                    answer = http.get("/api/v1/query", params={"query": expr})
                    if answer.status_code == 200:
                        return list(answer.json()["data"]["result"])
                    assert 503 == answer.status_code, answer.text
                return []

            waiting.until(lambda: ask("count_over_time(vllm:num_requests_running[1m]) > 2"), "third round of rules",
                          lambda: waiting.processor_time(process.pid))
            assert set() == {title for title, expr in QUERIES if not ask(expr)} - EMPTY
            assert set() == {name for name in VLLM if not ask(f'{name}{{model_name="tiny"}}')}
            for rule in ALERTS.values():
                ask(rule["expr"])
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.parametrize("name", ["appliance-connect", "appliance-watch"])
def test_systemd_takes_the_units(name: str, tmp_path: Path) -> None:
    """With a program that is there; and what it may do is little."""
    require.tools("systemd-analyze", package="systemd")
    unit = tmp_path / f"{name}.service"
    unit.write_text((FOLDER / unit.name).read_text().replace("/opt/appliance/.venv/bin/appliance", "/bin/true"))
    for words in (["verify", "--man=no"], ["security", "--offline=true", "--threshold=30"]):
        done = subprocess.run(["systemd-analyze", *words, unit], capture_output=True, text=True, check=False)
        assert 0 == done.returncode, done.stdout + done.stderr


def test_each_alert_is_on_the_page() -> None:
    """The guide says of each what it means and what to do, and names no other."""
    page = (ROOT / "docs/guides/monitoring.md").read_text()
    assert [*ALERTS] == re.findall(r"^\| `(Appliance\w+)` \|", page, re.MULTILINE)
    assert all(rule["labels"]["severity"] in ("critical", "warning", "info") for rule in ALERTS.values())
