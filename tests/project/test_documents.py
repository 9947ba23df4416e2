"""The documents lead where they say: every link to a file of the project, and to a heading in one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md"),
                    *ROOT.glob("examples/**/*.md")])


def _anchors(document: Path) -> set[str]:
    """What headings are called in links: lower case, without punctuation, with hyphens for spaces."""
    heads = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    """Files that are there, and headings that they have."""
    wrong = []
    for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        place, _, anchor = link.partition("#")
        target = document.parent / place if place else document
        if link.startswith("http"):
            continue
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in _anchors(target)):
            wrong.append(link)
    assert [] == wrong


def test_every_document_is_found_from_the_readme() -> None:
    """None of the documents is reachable by its name alone."""
    seen, left = set(), [ROOT / "README.md"]
    while left:
        document = left.pop().resolve()
        if document in seen or document.suffix != ".md" or not document.exists():
            continue
        seen.add(document)
        left += [document.parent / link.partition("#")[0] for link in
                 re.findall(r"\]\(([^)\s]+)\)", document.read_text()) if not link.startswith("http")]
    assert [] == sorted(str(path.relative_to(ROOT)) for path in DOCUMENTS if path.resolve() not in seen)
