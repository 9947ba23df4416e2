"""Draw the terminal pictures of the documentation: `python docs/site/pictures.py`.

Each shows what a command prints here: a policy with two mistakes is checked; the demo is served,
verified, watched and ended. Digests are cut, and the port is 8080 as on the pages. Draw them again
after the words of these commands changed: a test compares them, but for times and digests.
"""

from __future__ import annotations

import argparse
import re
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/pictures"
MISTAKES = {'memory_budget = "1GiB"': 'memory_budgt  = "1GiB"', "port = 8080": 'port = "8080"'}
ALT = {"check": "appliance check names two mistakes of a policy, each with its line, what is allowed, and the fix",
       "verify": "appliance verify of the demo: the verdict is SIMULATED, with what is proved and what is not",
       "watch": "the metrics of appliance watch: 1 for verified while the demo is there, and 0 when it is gone"}
COLUMNS, WIDTH, HEIGHT, EDGE = 106, 8.4, 20, 16  # characters of a line; units of a character; of the frame
COLOURS = (("command", r"\$ "), ("bad", r"(\S+: )?error\[|.*verified{.*0\.0$"),
           ("note", r"\s*(http\S+: )?SIMULATED\b|.*verified{.*1\.0$"), ("quiet", r"\s+(hint|more|allowed|fix)\b"))
STYLE = ("text{font:14px ui-monospace,Menlo,Consolas,monospace;fill:#e6edf3;white-space:pre}.command{fill:#fff;"
         "font-weight:bold}.bad{fill:#ff9b93}.note{fill:#f2cc60}.quiet{fill:#9fb6cc}")


def drawn(name: str, said: str) -> str:
    """The picture of what a terminal shows, as SVG. It names no font or file of elsewhere."""
    lines = [part for line in said.rstrip("\n").splitlines()
             for part in textwrap.wrap(line, COLUMNS, subsequent_indent="    ", drop_whitespace=False) or [""]]
    wide, high = round(COLUMNS * WIDTH + 2 * EDGE), len(lines) * HEIGHT + 2 * EDGE
    lines = [line.rstrip() for line in lines]
    shown = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" role="img">',
             f"<title>{escape(ALT[name])}</title>", f"<style>{STYLE}</style>",
             f'<rect width="{wide}" height="{high}" rx="8" fill="#0d1117"/>']
    for number, line in enumerate(lines):
        kind = next((name for name, form in COLOURS if re.match(form, line)), "plain")
        shown.append(f'<text class="{kind}" x="{EDGE}" y="{EDGE + 14 + number * HEIGHT}" xml:space="preserve" '
                     f'textLength="{round(len(line) * WIDTH, 1)}">{escape(line)}</text>' if line.strip() else "")
    return "\n".join(each for each in [*shown, "</svg>"] if each) + "\n"


def _run(command: str, folder: Path, **places: str) -> str:
    """The command, and what it prints; `places` stand in its words for what is here."""
    words = [sys.executable, "-m", *(places.get(word, word) for word in command.split())]
    done = subprocess.run(words, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                          env={"PATH": "", "PYTHONPATH": str(ROOT), "COLUMNS": str(COLUMNS)})
    return f"$ {command}\n{done.stdout}"


def _check(folder: Path) -> str:
    """Check the policy that the README begins with, after two mistakes."""
    policy = re.search(r"^```hcl\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    text = policy[1] if policy is not None else ""
    for right, wrong in MISTAKES.items():
        if right not in text:
            sys.exit(f"README.md has no policy with: {right}")
        text = text.replace(right, wrong)
    (folder / "first.hcl").write_text(text, "utf-8")
    return _run("appliance check first.hcl", folder)


@contextmanager
def _served(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The demo on a free port, and its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    text = (ROOT / "examples/demo.hcl").read_text("utf-8")
    (folder / "demo.hcl").write_text(re.sub(r"\b8080\b", str(port), text), "utf-8")
    words = [sys.executable, "-m", "appliance", "serve", "demo.hcl", "--models", str(ROOT / "build/models")]
    process = subprocess.Popen(words, cwd=folder, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                               env={"PATH": "", "PYTHONPATH": str(ROOT)})
    try:
        said = ""
        while "ready on" not in said:
            said = process.stderr.readline() if process.stderr else ""
            if not said:
                sys.exit("the demo does not boot: make run says why")
        yield process, f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.communicate()


def _watch(process: subprocess.Popen[str], url: str, folder: Path) -> str:
    """Watch the demo once, and once more when it is gone: what each look tells a monitoring."""
    said = []
    for _ in range(2):
        _run("appliance watch URL --policy demo.hcl --accept simulated --once --textfile out", folder, URL=url)
        lines = re.findall(r"^appliance_watch_ver.*", (folder / "out").read_text("utf-8"), re.MULTILINE)
        said += ["$ appliance watch URL --policy demo.hcl --accept simulated --once --textfile out >said",
                 "$ grep '^appliance_watch_ver' out", *lines, ""]
        process.terminate()
        process.wait()
    return "\n".join(said)


def taken(folder: Path) -> dict[str, str]:
    """Run each command; its output by the picture's name."""
    found = {"check": _check(folder)}
    with _served(folder) as (process, url):
        found["verify"] = _run("appliance verify URL --policy demo.hcl", folder, URL=url)
        found["watch"] = _watch(process, url, folder)
    port = url.rpartition(":")[2]
    shown = {name: said.replace("URL", url).replace(f":{port}", ":8080") for name, said in found.items()}
    return {name: re.sub(r"\b([0-9a-f]{12})[0-9a-f]{52,}\b", r"\1…", said) for name, said in shown.items()}


def main() -> int:
    """Write all pictures."""
    argparse.ArgumentParser(description="draw the terminal pictures of the documentation").parse_args()
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, said in taken(Path(folder)).items():
            (FOLDER / f"{name}.svg").write_text(drawn(name, said), "utf-8")
            print(FOLDER / f"{name}.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
