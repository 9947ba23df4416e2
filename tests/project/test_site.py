"""The documentation site: no dead link, complete, found by its own search, and accessible, in headless Chromium."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.extent import some
from tests.support.require import absent

ROOT = Path(__file__).parents[2]
LOOKED_AT = ("index.html", "concepts/privacy.html", "guides/image.html", "reference/policy.html",
             "reference/commands.html")
SEARCH = """setTimeout(() => { const box = document.querySelector("[data-md-component=search-query]");
document.querySelector("[data-md-toggle=search]").click(); box.focus(); box.value = "padding";
for (const each of ["keyup", "input"]) box.dispatchEvent(new Event(each, {bubbles: true})); }, 1000)"""
JUDGE = """setTimeout(() => axe.run().then(found => { const told = document.createElement("pre");
told.id = "axe"; told.textContent = JSON.stringify(found.violations.filter(each => ["serious", "critical"].includes(
each.impact)).map(each => [each.id, each.nodes.slice(0, 3).map(node => node.html)])); document.body.append(told);
}), 1000)"""


def _built(root: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, root / "docs/site/build.py", "--output", folder], check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does, elsewhere."""
    folder = tmp_path_factory.mktemp("site")
    done = _built(ROOT, folder)
    assert done.returncode == 0, done.stdout
    return folder / "site"


def _seen(page: Path, *scripts: str, dark: bool = False) -> str:
    """The page's elements after `scripts` ran in it, read from a file by a browser without network."""
    chromium = shutil.which("chromium") or absent("chromium shows the site; on Debian: apt-get install chromium")
    shown = page.with_name("shown.html")
    safe = [each.replace("</script", "<\\/script") for each in scripts]
    ends = "".join(f"<script>{each}</script>" for each in safe)
    shown.write_text(page.read_text("utf-8").replace("</body>", ends + "</body>"), "utf-8")
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    try:
        return subprocess.run(
            [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--dump-dom",
             "--host-resolver-rules=MAP * ~NOTFOUND", *scheme, shown.as_uri()],
            capture_output=True, text=True, check=True).stdout
    finally:
        shown.unlink()


def test_every_page_is_in_the_site(site: Path) -> None:
    """Also those that are written from the code."""
    pages = [path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")]
    assert [] == [str(page) for page in [*pages, Path("reference/commands.html"), Path("reference/client.html")]
                  if not (site / page).is_file()]
    commands = (site / "reference/commands.html").read_text("utf-8")
    assert "appliance model seal" in commands
    assert "--tpm-state" in commands


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    """A page names its own scripts, styles and fonts alone."""
    for page in site.rglob("*.html"):
        assert not re.findall(r'<(?:script|img|link rel="stylesheet")[^>]*(?:src|href)="?(?:https?:)?//[^"> ]+',
                              page.read_text("utf-8")), page


def test_a_dead_link_ends_the_build(tmp_path: Path) -> None:
    """A link to no page, and one to no heading: each is named."""
    tree = tmp_path / "tree"
    shutil.copytree(ROOT / "docs", tree / "docs")
    for name in ("examples", "policies"):
        shutil.copytree(ROOT / name, tree / name)
    for path in [*ROOT.glob("*.md"), ROOT / "LICENSE"]:
        shutil.copy(path, tree)
    page = tree / "docs" / "concepts" / "accuracy.md"
    page.write_text(page.read_text("utf-8") + "\n[one](nowhere.md) [two](memory.md#no-such-heading)\n", "utf-8")
    done = _built(tree, tmp_path)
    assert done.returncode == 1
    assert "nowhere.md" in done.stdout
    assert "no-such-heading" in done.stdout


def test_the_search_works_without_a_server(site: Path) -> None:
    """From a file, with no network."""
    shown = _seen(site / "concepts/privacy.html", SEARCH)
    assert re.search(r"md-search-result__meta[^>]*>\s*\d+ matching documents", shown)


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_an_accessibility_check_finds_nothing_serious(site: Path, dark: bool) -> None:
    """axe-core, on a page of each kind."""
    axe = next((ROOT / "build/axe").glob("axe-*.min.js"), None) or absent("axe-core is absent; run: make vocabularies")
    for name in some(LOOKED_AT, 3) if dark else LOOKED_AT:  # colours are what differs
        shown = _seen(site / name, axe.read_text("utf-8"), JUDGE, dark=dark)
        found = re.search(r'<pre id="axe">(.*?)</pre>', shown, re.S)
        assert found is not None, name
        assert [] == json.loads(html.unescape(found[1])), name
