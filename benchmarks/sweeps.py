"""`python -m benchmarks.sweeps`: what `privacy.memory_access = "oblivious"` costs an answer.

A model is sealed and loaded twice, as `infer` loads it, by policies that differ in that one field.
Both have `access_pattern = "oblivious"` and `streaming_decrypt = true`. They take turns with
prompts of drawn words. Timed on the wall are the first token, from the prompt's text on, and each
of the tokens after it. Printed are medians, and medians of the ratios of turns.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from appliance.boot.oneshot import Ask, Session, open_session
from appliance.cli import numbers
from appliance.models.sealed.reader import structure
from appliance.sealing import sealing
from benchmarks import report
from tests.support.demo_model import demo_model
from tests.support.sealed_models import KEY
from tests.support.server import write_policy

FORMS = ("open", "oblivious")
SAMPLING = {"top_k": 40, "top_p": 0.95}
WORDS = ("the", "river", "carries", "cold", "water", "from", "hills", "to", "sea", "while", "people", "in", "old",
         "town", "wait", "for", "a", "boat", "that", "brings", "bread", "letters", "and", "news", "of", "which")


def opened(folder: Path, sealed: Path, form: str, threads: int, digest: str) -> Session:
    """The sealed model by a policy of this form."""
    place = folder / form
    place.mkdir()
    pins = (f'sealed_header_sha256 = "{structure(sealed)[0].digest.hex()}"\n'
            f'key {{\n provider = "file"\n path = "{folder / "key"}"\n }}\n'
            'streaming_decrypt = true\naccess_pattern = "oblivious"\ncontext_length = 2048\n')
    path = write_policy(place, {"demo": sealed}, model=pins, schema=2, privacy=f'memory_access = "{form}"',
                        limits="prompt_tokens = 1500")
    path.write_text(path.read_text().replace(hashlib.sha256(sealed.read_bytes()).hexdigest(), digest))
    return open_session(path, folders=(sealed.parent,), threads=threads)


def timed(session: Session, text: str, tokens: int) -> tuple[float, float, int]:
    """Seconds to the first token and for each further one, and tokens of the prompt."""
    came = list[float]()
    start = time.perf_counter()
    answer = session.run(Ask(text, raw=True, max_tokens=tokens, temperature=0.8, seed=1, sampling=SAMPLING),
                         lambda _text: came.append(time.perf_counter()))
    return came[0] - start, (came[-1] - came[0]) / max(1, len(came) - 1), len(answer.prompt_tokens)


def measure(model: Path, *, words: int, tokens: int, rounds: int, threads: int) -> dict[str, Any]:
    """Both forms in turn; the first round does not count."""
    rng, found = random.Random(1), {form: list[tuple[float, float, int]]() for form in FORMS}
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as closing:
        folder = Path(name)
        (folder / "key").touch(0o600)
        (folder / "key").write_text(KEY.hex())
        sealing.seal(model, folder / "model.sealed", KEY)
        digest = hashlib.sha256(model.read_bytes()).hexdigest()
        sessions = {form: closing.enter_context(opened(folder, folder / "model.sealed", form, threads, digest))
                    for form in FORMS}
        for _ in range(rounds + 1):
            text = " ".join(rng.choice(WORDS) for _ in range(words))
            for form in rng.sample(FORMS, len(FORMS)):
                found[form].append(timed(sessions[form], text, tokens))
    rows = {form: found[form][1:] for form in FORMS}
    return {"model": model.name, "prompt_tokens": round(statistics.median(row[2] for row in rows["open"])),
            "rounds": rounds, **{
                part: {**{f"{form}_ms": round(1e3 * statistics.median(row[place] for row in rows[form]), 2)
                          for form in FORMS},
                       "ratio": round(statistics.median(other[place] / one[place] for one, other in zip(
                           rows["open"], rows["oblivious"], strict=True)), 4)}
                for place, part in enumerate(("first_token", "each_token"))}}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweeps", description="what sweeps cost an answer")
    parser.add_argument("model", nargs="?", type=Path, help="a GGUF file (default: the demo model)")
    for name, least, most, default, what in (
            ("words", 1, 1400, 512, "of a prompt"), ("tokens", 2, 500, 64, "of an answer"),
            ("rounds", 1, 1000, 15, "of both forms"), ("threads", 1, 64, 2, "of the engine")):
        parser.add_argument(f"--{name}", type=numbers.whole(least, most), default=default,
                            help=f"{what} (default: %(default)s)")
    args = parser.parse_args(arguments)
    found = measure(args.model or demo_model(), words=args.words, tokens=args.tokens, rounds=args.rounds,
                    threads=args.threads)
    print(json.dumps(found | {"machine": report.machine()}, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
