"""The judge of our HCL reading: HashiCorp's own parser, in a Go program that is compiled once."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import unicodedata
from pathlib import Path
from typing import Any, NamedTuple

from appliance.policy.hcl.tree import Body, Broken, ListNode, Literal, Node
from tests.support.require import absent

SOURCE = Path(__file__).with_suffix(".go")
FOLDER = Path(__file__).parents[2] / "build" / "tests" / "hcl_judge"
GOPATH = Path("/usr/share/gocode")  # where Debian puts the sources of libraries


class Reading(NamedTuple):
    """The judgement of HashiCorp's parser on a text."""

    accepted: bool
    literal: bool  # nothing in it has to be computed
    error: str
    body: dict[str, Any] | None


class Judge:
    """One process, which answers a line with a line."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([_compiled()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def read(self, text: str) -> Reading:
        """Return what the parser says of a text."""
        if self._process.stdin is None or self._process.stdout is None:
            raise ValueError("the judge has no pipes")
        print(json.dumps(text), file=self._process.stdin, flush=True)
        said = json.loads(self._process.stdout.readline())
        return Reading(said["accepted"], said["accepted"] and said["literal"], said["error"], said["body"])

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def _compiled() -> Path:
    """The program, compiled if it was not."""
    program = FOLDER / hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            if shutil.which("go") is None or not (GOPATH / "src/github.com/hashicorp/hcl/v2").is_dir():
                absent("HashiCorp's parser is needed: apt-get install golang-go golang-github-hashicorp-hcl-v2-dev")
            subprocess.run(
                ["go", "build", "-o", program, SOURCE], check=True, capture_output=True, text=True,
                env={**os.environ, "GO111MODULE": "off", "GOPATH": str(GOPATH), "GOCACHE": str(FOLDER / "cache")})
    return program


def as_judged(node: Node, *, composed: bool = True) -> Any:
    """Our tree in the judge's form. It holds the text of a value in Unicode's composed form (NFC); so does this, unless
    the difference is asked for."""
    if isinstance(node, Broken):
        return ["broken"]
    if isinstance(node, ListNode):
        return ["list", [as_judged(item, composed=composed) for item in node.items]]
    if isinstance(node, Literal):
        kind = {bool: "bool", str: "string"}.get(type(node.value), "number")
        return [kind, _text(node.value, composed) if isinstance(node.value, str) else node.value]
    return ["object", {_text(name, composed): as_judged(each.value, composed=composed)
                       for name, each in node.attributes.items()}]


def _text(text: str, composed: bool) -> str:
    return unicodedata.normalize("NFC", text) if composed else text


def whole(body: Body, *, composed: bool = True) -> dict[str, Any]:
    """Our tree of a file in the judge's form."""
    blocks = [{"type": block.type, "labels": [label for label, _ in block.labels],
               "body": whole(block.body, composed=composed)} for block in body.blocks]
    return {"attributes": as_judged(Body(body.span, body.attributes), composed=composed)[1], "blocks": blocks}


def same(ours: Any, theirs: Any) -> bool:
    """Whether two readings in the judge's form are equal; the judge writes numbers as texts."""
    if isinstance(ours, list) and len(ours) == 2 and ours[0] == "number":
        return (isinstance(theirs, list) and theirs[0] == "number"
                and type(ours[1])(float(theirs[1])) == ours[1])
    if isinstance(ours, list):
        return isinstance(theirs, list) and len(ours) == len(theirs) and all(map(same, ours, theirs))
    if isinstance(ours, dict):
        return isinstance(theirs, dict) and ours.keys() == theirs.keys() and all(same(ours[k], theirs[k]) for k in ours)
    return type(ours) is type(theirs) and ours == theirs
