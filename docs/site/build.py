"""Build the documentation site: `make docs`, or `python docs/site/build.py`.

The pages of `docs/` and of the top level are copied to `build/site-source`. The reference of
commands and of the client is written from the code; MkDocs makes `build/site` of it all. A dead
link, a missing anchor or a page without a place in the navigation ends the build with exit code 1.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import appliance.client
from appliance.cli.main import VERBS, parser_of

ROOT = Path(__file__).parents[2]
PAGES = {"README.md": "index.md", **{name: name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "LIMITATIONS.md",
                                                             "SECURITY.md", "CHANGELOG.md")}}
LANGUAGES = {".hcl": "terraform", ".py": "python", ".json": "json", ".toml": "toml", ".sh": "sh"}
LINK = re.compile(r"(?<=\]\()(?!https?://|#|mailto:)([^)\s#]+)(#[^)\s]*)?(?=\))")


def copied(site: Path) -> None:
    """Copy all pages to `site`, with their links as the site has them."""
    shutil.rmtree(site, ignore_errors=True)
    shutil.copytree(ROOT / "docs", site, ignore=shutil.ignore_patterns("site", "*.py"))
    for name, page in PAGES.items():
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, site / page)
    for name in ("site.css", "readable.js", "iframe-worker.js"):
        shutil.copy(ROOT / "docs" / "site" / name, site)
    at = {path.relative_to(ROOT).as_posix(): path.relative_to(ROOT / "docs").as_posix()
          for path in (ROOT / "docs").rglob("*")} | PAGES
    origins = {page: name for name, page in at.items()}
    for path in sorted(site.rglob("*.md")):
        page = path.relative_to(site).as_posix()
        origin = origins[page]
        path.write_text(LINK.sub(partial(_link, site, at, origin, page), path.read_text("utf-8")), "utf-8")


def _link(site: Path, at: dict[str, str], origin: str, page: str, match: re.Match[str]) -> str:
    """A link of `origin` as `page` writes it: to a page, or to the text of a file outside of the
    documentation."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(origin), match[1]))
    file = ROOT / target
    if target not in at and file.is_file():
        at[target] = f"source/{target}.md"
        text = (site / at[target])
        text.parent.mkdir(parents=True, exist_ok=True)
        language = LANGUAGES.get(file.suffix, "text")
        text.write_text(f"# `{target}`\n\n````{language}\n{file.read_text('utf-8').rstrip()}\n````\n", "utf-8")
    found = at.get(target)
    if found is None:
        return match[0]  # MkDocs names it
    return posixpath.relpath(found, posixpath.dirname(page) or ".") + (match[2] or "")


def commands() -> str:
    """The reference of the command line, from the same parser that reads arguments."""
    parts = ["# The command line", "", "For each verb, this is the output of `--help`."]
    for verb in (None, *VERBS):
        for name, each in _verbs(parser_of(verb), verb):
            parts += ["", f"## `{name}`", "", "```text", each.format_help().rstrip(), "```"]
    return "\n".join(parts) + "\n"


def _verbs(each: argparse.ArgumentParser, only: str | None) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield the parser of `only` and the parsers below it; for None, only the whole command's."""
    below = next((action.choices for action in each._actions if isinstance(action, argparse._SubParsersAction)), {})
    if only is None:
        yield each.prog, each
    elif each.prog.count(" "):
        yield each.prog, each
        for verb in dict.fromkeys(below.values()):
            yield from _verbs(verb, only)
    else:
        yield from _verbs(below[only], only)


def client() -> str:
    """The reference of the Python client: what `appliance.client` exports."""
    parts = ["# The Python client", "", "```text", inspect.getdoc(appliance.client) or "", "```"]
    things = {name: getattr(appliance.client, name, None) for name in appliance.client.__all__}
    for name, thing in things.items():
        if thing is None or inspect.ismodule(thing):
            continue  # a module for other rooms
        parts += ["", f"## `{name}`", "", *_documented(thing)]
        for method, value in vars(thing).items() if inspect.isclass(thing) else ():
            plain = inspect.unwrap(getattr(thing, method))
            if not method.startswith("_") and callable(plain) and inspect.getdoc(value):
                parts += ["", f"### `{name}.{method}`", "", *_documented(plain)]
    return "\n".join(parts) + "\n"


def _documented(thing: object) -> list[str]:
    signature = ""
    if callable(thing) and not (inspect.isclass(thing) and thing.__init__ is object.__init__):  # type: ignore[misc]
        signature = str(inspect.signature(thing)).replace("'", "")
    name = getattr(thing, "__name__", "")
    return ["```python", f"{name}{signature}", "```", "", inspect.getdoc(thing) or ""]


def configured(source: Path, site: Path) -> str:
    """MkDocs' configuration for these folders."""
    text = (ROOT / "docs" / "site" / "mkdocs.yml").read_text("utf-8")
    return f"{text}docs_dir: {json.dumps(str(source))}\nsite_dir: {json.dumps(str(site))}\n"


def main() -> int:
    """Write the sources, then the site."""
    arguments = argparse.ArgumentParser(description="build the documentation site; a dead link fails")
    arguments.add_argument("--output", type=Path, default=ROOT / "build", help="the folder of `site` (default: build)")
    output = arguments.parse_args().output.resolve()
    source, site = output / "site-source", output / "site"
    copied(source)
    os.environ["COLUMNS"] = "100"
    (source / "reference" / "commands.md").write_text(commands(), "utf-8")
    (source / "reference" / "client.md").write_text(client(), "utf-8")
    settings = output / "mkdocs.yml"
    settings.write_text(configured(source, site), "utf-8")
    done = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "-f", settings],
                          env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=False)
    if done.returncode == 0:
        print(f"open {site}/index.html")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
