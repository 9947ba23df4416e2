"""The idioms that prose avoids, each with its name: short sentences can still be hard to read.

`tests/support/prose.py` splits prose into sentences and asks here about each. Tables of pages are
asked about too, cell by cell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_PEOPLE = (r"(?:auditor|authorit|broker|builder|caller|client|developer|host|model|operator|owner|peer|people|person|"
           r"program|reader|server|tenant|user|verifier|writer|they|you)(?:s|y|ies)?")
_COMPARED = r"(?:longer|more|less|fewer|better|worse|larger|smaller|greater|later|earlier|other|different)"

# Each idiom, and the pattern of its offences in one sentence.
SENTENCES = {
    "one that": re.compile(r"\b(?:ones?|those) (?:that|which|who|whose|whom|of whom)\b", re.IGNORECASE),
    "what of": re.compile(r"\bwhat of\b", re.IGNORECASE),
    "last word": re.compile(r"\b(?:alone|at all|too)[)\"'”’*_]*(?:[.!?;:][)\"'”’*_]*|)$"),
    "is no": re.compile(rf"(?<!\bthere )(?<!\bThere )\b(?:is|are|was|were) no (?!{_COMPARED}\b)(?=[a-z])"),
    "told": re.compile(rf"\btold\b(?! apart)", re.IGNORECASE),
    "clause": re.compile(r"(?:^|[;:] )(?:Who|What|Whoever|Whatever|who|what|whoever|whatever)\b(?![^?]*\?)"),
}
_ANIMATE = re.compile(rf"\b{_PEOPLE} (?:is|are|was|were|be|been|has been|have been|must be|can be) told\b", re.IGNORECASE)


def of_sentence(text: str) -> Iterator[str]:
    """Name each idiom that a sentence offends against."""
    for name, pattern in SENTENCES.items():
        if pattern.search(_ANIMATE.sub("", text) if name == "told" else text):
            yield name
