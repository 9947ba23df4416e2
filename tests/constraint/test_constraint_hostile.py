"""Schemas and grammars that are made to cost: bounded time, memory and stack, and a clear error."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from appliance.constraint import gbnf, lark, spec
from appliance.errors import ConstraintError, EngineError
from tests.constraint.bombs import SPECS
from tests.constraint.walks import allowed, compiler, words
from tests.support import pace
from tests.support.linear import grows_linearly

ROOT = Path(__file__).parents[2]
SECONDS = 5.0  # of a processor, for one; it takes a tenth
MASK_SECONDS = 1.0  # it takes 50 ms at most
MEGABYTES = 200  # for one
ACCEPTED = {"sixty tools", "values", "formats", "a long text", "choices", "a literal of 32 KB", "5,000 words",
            "5,000 words in a row", "a long constant, often"}  # among others


@pytest.mark.parametrize("name", SPECS)
def test_each_bomb_is_bounded(name: str) -> None:
    """It is refused, or compiles, and then so are its masks; an answer that costs too much fails."""
    start, found = time.process_time(), list[str]()
    try:
        constraint = compiler().compile(SPECS[name])
    except ConstraintError as error:
        found = [error.hint or "no hint", error.code]
    assert pace.within(time.process_time() - start, SECONDS)
    if found:
        assert "no hint" not in found
        assert name not in ACCEPTED
        return
    walk, rng = constraint.begin(), random.Random(name)
    for _ in range(100):
        begun = time.process_time()
        try:
            tokens = [token for token in allowed(walk) if token not in words().eot_ids]
            walk.forced()
            if tokens:
                walk.accept(rng.choice(tokens))
        except EngineError as error:
            found, tokens = [error.code], []
        assert pace.within(time.process_time() - begun, MASK_SECONDS)
        if not tokens:
            break
    if found:
        assert (["constraint-stuck"], True) == (found, constraint.spoiled)
        assert name not in ACCEPTED


READ = {
    "GBNF": (gbnf.to_lark, [
        ('root ::= "', "a", '"'), ('root ::= "a"{1,', " ", ""), ('root ::= "', '\\"', ""),
        ("root ::= ", '"ab" | ', '"c"'), ("root ::= [", "a-z", "]"), ("root ::= ", "[", ""), ("root ::= ", "a", ""),
        ("", "#\n", ""), ('root ::= "a" ', "\n", "("), ('root ::= [a-c] "', "abd", '"')]),
    "Lark": (lambda text: lark.prepare(text, {}), [
        ("start: /", "[", "/"), ("start: /", "(?:[", "/"), ('start: "', '\\"', ""), ('start: "a"\n', "a", ""),
        ("", "a", ":"), ('start: "a"\n', "a\n", ""), ("start: ", "<a", ""), ("start: ", "/a/ ", ""),
        ("start: %json", " ", "{}"), ("start: ", "%json {} ", ""), ("start: ", "(", ""),
        ("start: ", "a | ", "b"), ("", "a: b\n", "")]),
}


@pytest.mark.parametrize(("name", "place"), [(name, place) for name, (_, texts) in READ.items()
                                             for place in range(len(texts))])
def test_reading_a_grammar_takes_time_as_its_text(name: str, place: int) -> None:
    """Whether it is refused or not."""
    read, texts = READ[name]
    before, unit, after = texts[place]

    def use(text: str) -> None:
        with contextlib.suppress(ConstraintError):
            read(text)

    longest = (200_000 - len(before + after)) // len(unit)
    assert grows_linearly(use, lambda count: before + unit * min(count, longest) + after)


_PROGRAM = """
import json, resource, sys, threading
from appliance.constraint.compiler import Compiler
from appliance.errors import ConstraintError, EngineError
from tests.constraint.bombs import SPECS
from tests.constraint.walks import allowed, compiler, words

compiler().compile(SPECS["sixty tools"])
kept, sizes = [], {}
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
def all_of_them():
    for name, spec in SPECS.items():
        before = peak()
        try:
            walk = compiler().compile(spec).begin()
            for _ in range(30):
                tokens = [token for token in allowed(walk) if token not in words().eot_ids]
                walk.forced()
                if not tokens:
                    break
                walk.accept(tokens[len(tokens) // 2])
        except (ConstraintError, EngineError):
            pass
        sizes[name] = peak() - before
threading.stack_size(2 << 20)
thread = threading.Thread(target=all_of_them)
thread.start()
thread.join()
print(json.dumps(sizes))
"""


@pytest.mark.slow
def test_memory_and_stack_are_bounded() -> None:
    """All of them in a thread with a stack of 2 MiB, the smallest that a C library gives by itself: none ends the
    process, and none takes more than its share."""
    done = subprocess.run([sys.executable, "-c", _PROGRAM], cwd=ROOT, capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stderr[-2000:]
    assert "" == done.stderr  # a panic would be told there
    sizes = json.loads(done.stdout)
    assert set(SPECS) == set(sizes)
    assert {} == {name: size for name, size in sizes.items() if size > MEGABYTES}


def test_compiling_lets_other_threads_run() -> None:
    """The event loop's thread goes on while a schema compiles in another."""
    turns, done = 0, threading.Event()
    worker = threading.Thread(target=lambda: (compiler().compile(SPECS["values"]), done.set()))
    worker.start()
    while not done.is_set():
        time.sleep(0.002)
        turns += 1
    worker.join()
    assert turns > 3


def test_no_message_has_words_of_the_request() -> None:
    """Summaries and hints say what it is in words of their own; the path alone has the schema's."""
    secret = "a-secret-name"
    for each in (spec.JsonSchema({"properties": {secret: {"contains": {}}}}), spec.JsonSchema({secret: 1}),
                 spec.JsonSchema({"type": "string", "pattern": f"(?<={secret})"}), spec.Gbnf(f'root ::= {secret}'),
                 spec.RegexText(f"{secret}("), spec.Lark(f"start: {secret}"),
                 spec.Lark(f'start: %json {{"not": "{secret}"}}'),
                 spec.TextList((secret, "\x00")), spec.JsonSchema({"const": f"{secret}\x01"}),
                 spec.JsonSchema({"oneOf": [{"pattern": secret}, {"const": secret}]})):
        with pytest.raises(ConstraintError) as caught:
            compiler().compile(each)
        assert secret not in str(caught.value)
