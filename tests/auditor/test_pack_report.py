"""The report of a pack: read without a script or a network, on a phone, on paper, in the dark, and by ear."""

from __future__ import annotations

import functools
import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from appliance.auditor.pack import gather, judge
from appliance.auditor.report import charts, figures
from tests.project.test_site import JUDGE
from tests.support import folders, packs
from tests.support.require import absent

ROOT = Path(__file__).parents[2]
POLICY_META = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
WIDE = """addEventListener("load", () => { const told = document.createElement("pre"), frame =
document.querySelector("iframe").contentDocument; told.id = "wide"; told.textContent = JSON.stringify(
[frame.documentElement.scrollWidth, ...[...frame.querySelectorAll("*")].filter(each =>
each.getBoundingClientRect().right > 361).slice(0, 3).map(each => each.outerHTML.slice(0, 200))]);
document.body.append(told); })"""


@functools.cache
def _page() -> str:
    papers = packs.deployment(folders.lasting("report"), requests=40)
    members = gather.members(papers.files)
    members["sbom-of-another"] = b""
    del members["sbom-of-another"], members["self-test/health.json"]  # something is missing
    return judge.judge(judge.written(members, papers.given)[0], papers.given).page().decode()


def _browser() -> str:
    return shutil.which("chromium") or absent("chromium shows the report; on Debian: apt-get install chromium")


def _shown(page: str, folder: Path, *options: str) -> str:
    """The page's elements after its scripts, in a browser without a network."""
    place = folder / "shown.html"
    place.write_text(page, "utf-8")
    return subprocess.run(
        [_browser(), "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--dump-dom",
         "--host-resolver-rules=MAP * ~NOTFOUND", *options, place.as_uri()],
        capture_output=True, text=True, check=True).stdout


class _Names(HTMLParser):
    """Elements, and what their attributes lead to."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.links: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        for name, value in attrs:
            if name in ("src", "href", "action", "data", "srcset", "poster", "background"):
                self.links.append(value or "")
            if name == "id":
                assert value not in self.ids
                self.ids.add(value or "")


def test_it_needs_nothing_else_and_has_no_script() -> None:
    """Links lead into the page alone; nothing is loaded, and the page's own policy forbids it."""
    found = _Names()
    found.feed(_page())
    assert not {"script", "link", "img", "iframe", "object", "embed", "form", "base"} & found.elements
    assert {"svg", "figure", "table", "blockquote", "style"} <= found.elements
    assert found.links
    assert all(each.startswith("#") and each[1:] in found.ids for each in found.links)
    assert "url(" not in _page()
    assert "@import" not in _page()
    assert "default-src 'none'" in html.unescape(POLICY_META.findall(_page())[0])


def test_everything_is_in_it() -> None:
    """Each claim, each control with its clause, what is missing, and what none of it shows."""
    text = html.unescape(re.sub(r"<[^>]+>", " ", _page()))
    for part in ("hospital", "evidence-verified", "164.312(b)", "CC7.2", "AU-9(3)", "A.6.2.8", "12(3)(a)", "○ missing",
                 "does not ask for tamper evidence", "Requests that were refused", "Time of whole requests",
                 "Refusals by their code", "rate_limit_exceeded", "epoch 2", "What this does not show"):
        assert part in text, part


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_an_accessibility_check_finds_nothing_serious(dark: bool, tmp_path: Path) -> None:
    """axe-core, which is let in by taking the page's own policy away."""
    axe = next((ROOT / "build/axe").glob("axe-*.min.js"), None) or absent("axe-core is absent; run: make vocabularies")
    scripts = [axe.read_text("utf-8"), JUDGE]
    ends = "".join("<script>" + each.replace("</script", "<\\/script") + "</script>" for each in scripts)
    page = POLICY_META.sub("", _page()).replace("</body>", ends + "</body>")
    shown = _shown(page, tmp_path, *(["--blink-settings=preferredColorScheme=0"] if dark else []))
    found = re.search(r'<pre id="axe">(.*?)</pre>', shown, re.S)
    assert found is not None
    assert [] == json.loads(html.unescape(found[1]))


def test_it_fits_a_phone(tmp_path: Path) -> None:
    """At 360 pixels nothing stands out to the right."""
    frame = html.escape(POLICY_META.sub("", _page()), quote=True)
    shown = _shown(f'<!DOCTYPE html><body><iframe width="360" height="800" style="border:0" srcdoc="{frame}"></iframe>'
                   f"<script>{WIDE}</script></body>", tmp_path)
    found = re.search(r'<pre id="wide">(.*?)</pre>', shown, re.S)
    assert found is not None
    width, *beyond = json.loads(html.unescape(found[1]))
    assert [] == beyond
    assert width <= 360


def test_it_goes_onto_paper(tmp_path: Path) -> None:
    """Several pages, from a browser without a network."""
    place = tmp_path / "report.html"
    place.write_text(_page(), "utf-8")
    subprocess.run([_browser(), "--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer",
                    "--host-resolver-rules=MAP * ~NOTFOUND", f"--print-to-pdf={tmp_path / 'report.pdf'}",
                    place.as_uri()], capture_output=True, check=True)
    data = (tmp_path / "report.pdf").read_bytes()
    assert data.startswith(b"%PDF-")
    assert data.count(b"/Type /Page\n") + data.count(b"/Type /Page/") + data.count(b"/Type /Page ") > 3


def test_what_a_stranger_names_is_text(tmp_path: Path) -> None:
    """Names in a pack that would be elements or scripts are shown as they are spelled."""
    papers = packs.deployment(tmp_path, requests=4)
    evil = (b'{"bomFormat":"CycloneDX","components":[{"type":"<script>x</script>",'
            b'"name":"\\u202e<img src=x onerror=y>"}]}')
    members = gather.members(papers.files) | {"image/sbom.cdx.json": evil}
    page = judge.judge(judge.written(members, papers.given)[0], papers.given).page()
    assert b"<script" not in page
    assert b"<img" not in page
    assert "\u202e".encode() not in page
    assert b"&lt;script&gt;" in page


def test_figures_are_those_of_the_log() -> None:
    """Counted apart: buckets of time and of duration, codes, boots."""
    def record(event: str, second: int, **more: object) -> dict[str, object]:
        return {"event": event, "time": f"2026-01-01T00:{second // 60:02}:{second % 60:02}Z", "epoch": 1, **more}

    found = figures.of([
        record("log.opened", 0, version="1"),
        record("request.done", 1, endpoint="/a", duration_us=90_000, finish="stop"),
        record("request.done", 59, endpoint="/a", duration_us=400_000), record("request.done", 61, endpoint="/b",
                                                                              duration_us=99_000_000),
        record("request.refused", 130, endpoint="/a", code="c1"), record("request.refused", 131, endpoint="/a"),
        record("audit.closed", 140), record("log.opened", 150, version="2")])
    assert (60, 5) == (found.step, found.requests)
    assert [2, 1, 0] == [count for _, count in found.done]
    assert [0, 0, 2] == [count for _, count in found.refused]
    taken = {label: count for label, count in found.latencies if count}
    assert {"under 0.1 s": 1, "to 0.5 s": 1, "over 60 s": 1} == taken
    assert (("None", 1), ("c1", 1)) == found.codes
    assert [("in order", 7), ("runs, or was cut", 1)] == [(each.ended, each.records) for each in found.boots]
    assert figures.of([]).requests == 0
    found = figures.of([record("request.refused", 1, sealed="00", period=1)])
    assert ((("sealed", 1),), (("sealed", 1),)) == (found.codes, found.endpoints)
    found = figures.of([
        record("requests.counted", 0, answered={"/health": 3}, connections={"late": 9}),
        record("requests.counted", 60, refused={"other": {"not_found": 2}, "/a": {"c1": 4, "not_found": 1}}),
        record("request.refused", 61, endpoint="/a", code="c1")])
    assert (11, [3, 0], [0, 8]) == (found.requests, [count for _, count in found.done], [
        count for _, count in found.refused])
    assert ((("c1", 5), ("not_found", 3)), (("/a", 6), ("/health", 3), ("other", 2))) == (found.codes, found.endpoints)


def test_bars_are_as_high_as_their_counts() -> None:
    """Read back from the picture."""
    drawn = charts.over_time("a", "A", (("one", 1), ("none", 0), ("four", 4)))
    assert [30.0, 120.0] == [float(each) for each in re.findall(r'class="bar"[^>]*height="([\d.]+)"', drawn)]
    drawn = charts.rows("b", "B", (("one", 1), ("four", 4)))
    assert [25.0, 100.0] == [float(each) for each in re.findall(r'class="bar"[^>]*width="([\d.]+)%"', drawn)]
    assert "None." in charts.rows("c", "C", ())


def test_a_report_says_whose_it_is(tmp_path: Path) -> None:
    """The packer's own says so; a judge's names the pack by its digest."""
    papers = packs.deployment(tmp_path, requests=4)
    data, _ = judge.written(gather.members(papers.files), papers.given)
    found = judge.judge(data, papers.given)
    assert b"by the packer, who also chose that time" in found.case.members["report.html"]
    assert found.sha256.encode() in found.page()
    assert b"by the packer" not in found.page()
