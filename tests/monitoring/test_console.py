"""`appliance console`: one page of a live service, without a script, on a phone, in the dark, and by ear."""

from __future__ import annotations

import html
import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest

from appliance.cli.main import main
from appliance.monitoring import console
from appliance.monitoring.policywords import sentences
from appliance.policy import load
from tests.project.test_site import JUDGE
from tests.support import waiting
from tests.support.pages import ROOT
from tests.support.require import absent
from tests.support.server import AUDITOR_KEY, Server, write_policy

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
POLICIES = sorted([*ROOT.glob("policies/*.hcl"), *ROOT.glob("examples/**/*.hcl")])
WIDE = """addEventListener("load", () => { const told = document.createElement("pre"), frame =
document.querySelector("iframe").contentDocument; told.id = "wide"; told.textContent = JSON.stringify(
[frame.documentElement.scrollWidth]); document.body.append(told); })"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Server]:
    """A simulated appliance with a padded policy, which answered once and refused once, and has signed its log."""
    policy = write_policy(
        tmp_path_factory.mktemp("console"), {"tiny": tiny_model}, schema=2, limits="tokens_per_day = 4000",
        privacy='token_count_rounding = 16\n timing_padding {\n first_token = "50ms"\n total = "100ms"\n }',
        audit='checkpoint_interval = "1s"')
    server = Server(policy, [tiny_model]).wait_ready()
    with server.http() as http:
        for more in ({}, {"temperature": 99}):
            http.post("/v1/chat/completions", json={**CHAT, **more})
    waiting.until(lambda: server.audit("audit.checkpoint"), "head of the log that is signed")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def shown(running: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The console before it, and where it listens."""
    key = tmp_path_factory.mktemp("key") / "key"
    key.write_text(AUDITOR_KEY)
    process = subprocess.Popen(
        [sys.executable, "-m", "appliance", "console", running.url, "--policy", str(running.policy), "--accept",
         "simulated", "--api-key-file", str(key)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield process, process.stdout.readline().removeprefix("ready: ").strip()
    process.send_signal(signal.SIGTERM)
    assert 143 == process.wait(60)
    process.stdout.close()


@pytest.fixture(scope="module")
def page(shown: tuple[subprocess.Popen[str], str]) -> str:
    """The page."""
    return httpx.get(shown[1], timeout=60, trust_env=False).raise_for_status().text


def _text(page: str) -> str:
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", page)))


def test_all_parts_are_on_it(page: str, running: Server) -> None:
    """The verdict with what it does not prove, the policy in words, the load, refusals, models, boot and log; each
    against what the service says of itself."""
    text = _text(page)
    with running.http(None) as http:
        health = http.get("/health").json()
    for part in ("simulated", "What it does not prove", "its operator can read everything",
                 "First tokens leave on a grid of 50 ms", "rounded up to multiples of 16",
                 "A key has 4000 tokens a day", "Tenant user asks models. It may ask tiny.", "invalid_value 1",
                 "resident weights", "ready",
                 health["models"][0]["sha256"], *(step["step"] for step in health["boot"])):
        assert part in text, part
    assert re.search(r"checkpoint \d+ s ago", text)
    assert "appliance/audit/" in text  # the head's origin


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.elements, self.links, self.inline = set[str](), list[str](), list[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "action")]
        self.inline += [name for name, _ in attrs if name == "style" or name.startswith("on")]


def test_nothing_external_and_no_script(shown: tuple[subprocess.Popen[str], str], page: str) -> None:
    """Its policy lets in one style sheet of its own; no other page may frame it, and no other host name reach it."""
    found = _Elements()
    found.feed(page)
    assert not {"script", "img", "iframe", "object", "form", "style"} & found.elements
    assert [] == found.inline
    assert {console.STYLE} == {each for each in found.links if not each.startswith("#")}
    with httpx.Client(base_url=shown[1], timeout=60, trust_env=False) as http:
        headers = http.get("/").headers
        assert headers["content-security-policy"] == (
            "default-src 'none'; style-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'")
        assert ("no-store", "nosniff") == (headers["cache-control"], headers["x-content-type-options"])
        sheet = http.get(console.STYLE).text
        assert "url(" not in sheet
        assert "@import" not in sheet
        assert [421, 404, 501] == [
            http.get("/", headers={"host": "evil.example"}).status_code, http.get("/x").status_code,
            http.post("/").status_code]


def test_a_page_that_cannot_be_read_shows_nothing_old(tmp_path: Path, tiny_model: Path) -> None:
    """Once the service is gone, the page says so, and has no value of before."""
    server = Server(write_policy(tmp_path, {"tiny": tiny_model}), [tiny_model]).wait_ready()
    (tmp_path / "key").write_text(AUDITOR_KEY)
    with subprocess.Popen(
            [sys.executable, "-m", "appliance", "console", server.url, "--policy", str(server.policy), "--accept",
             "simulated", "--api-key-file", str(tmp_path / "key")], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().removeprefix("ready: ").strip()
        try:
            server.stop()
            text = _text(httpx.get(url, timeout=60, trust_env=False).text)
        finally:
            process.terminate()
    assert "not read" in text
    assert "resident weights" not in text


def test_others_cannot_listen_and_the_unverified_is_not_shown(running: Server, tmp_path: Path) -> None:
    """Only loopback addresses; and the exit code of a verdict that will not do."""
    (tmp_path / "key").write_text(AUDITOR_KEY)
    words = ["console", running.url, "--policy", str(running.policy), "--api-key-file", str(tmp_path / "key")]
    assert 2 == main([*words, "--listen", "0.0.0.0:0", "--accept", "simulated"])
    assert 5 == main(words)


@pytest.mark.parametrize("path", POLICIES, ids=lambda path: path.stem)
def test_every_policy_of_ours_has_words(path: Path) -> None:
    """Sentences end, and name each model and tenant."""
    policy = load(path).policy
    said = list(sentences(policy))
    assert all(each.endswith(".") and "None" not in each for each in said)
    names = [*(each.name for each in policy.models), *(each.name for each in policy.tenants.tenants)]
    assert all(any(name in each for each in said) for name in names)


def _browser() -> str:
    return shutil.which("chromium") or absent("chromium shows the page; on Debian: apt-get install chromium")


def _dumped(page: str, folder: Path, *options: str) -> str:
    """The page's elements after its scripts, in a browser without a network."""
    place = folder / "shown.html"
    place.write_text(page, "utf-8")
    return subprocess.run(
        [_browser(), "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--dump-dom",
         "--host-resolver-rules=MAP * ~NOTFOUND", *options, place.as_uri()],
        capture_output=True, text=True, check=True).stdout


def _whole(page: str) -> str:
    """The page with its style sheet inside, and never read anew."""
    page = re.sub(r'<meta http-equiv="refresh"[^>]*>', "", page)
    return re.sub(r'<link rel="stylesheet"[^>]*>', f"<style>{console.style().decode()}</style>", page)


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_an_accessibility_check_finds_nothing_serious(dark: bool, page: str, tmp_path: Path) -> None:
    """By axe-core."""
    axe = next((ROOT / "build/axe").glob("axe-*.min.js"), None) or absent("axe-core is absent; run: make vocabularies")
    ends = "".join("<script>" + each.replace("</script", "<\\/script") + "</script>"
                   for each in (axe.read_text("utf-8"), JUDGE))
    found = re.search(r'<pre id="axe">(.*?)</pre>', _dumped(
        _whole(page).replace("</body>", ends + "</body>"), tmp_path,
        *(["--blink-settings=preferredColorScheme=0"] if dark else [])), re.DOTALL)
    assert found is not None
    assert [] == json.loads(html.unescape(found[1]))


@pytest.mark.slow
def test_it_fits_a_phone(page: str, tmp_path: Path) -> None:
    """At 360 pixels nothing scrolls to the side but tables in their own frames."""
    frame = html.escape(_whole(page), quote=True)
    found = re.search(r'<pre id="wide">(.*?)</pre>', _dumped(
        f'<!DOCTYPE html><body><iframe width="360" height="800" style="border:0" srcdoc="{frame}"></iframe>'
        f"<script>{WIDE}</script></body>", tmp_path), re.DOTALL)
    assert found is not None
    assert json.loads(html.unescape(found[1]))[0] <= 360
