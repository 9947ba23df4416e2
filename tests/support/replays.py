"""Answers in many circumstances, and each of them computed again: `python -m tests.support.replays COUNT` measures it.

An answer is kept as a receipt's opening. `python -m tests.support.replays --again TARGET LIBRARY MODEL OPENINGS`
computes a file of them again with the kernels of a target (LIBRARY -: those of this process), and prints how many are
the same.
"""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.auditor import replay
from appliance.engine.decode.chain.ending import FREE, Ending
from appliance.engine.decode.generation import GenerationRequest
from appliance.engine.decode.sampler import Sampling
from appliance.engine.engine import Engine, EngineOptions
from appliance.kernels.runtime import table, targets
from appliance.policy.schema.sampling import SAMPLERS

MODEL, TOKENS, CONTEXT = "mixed", 12, 160
WORDS = ("alpha", "beta", "gamma")
VALUES: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0}, {"temperature": 0.8, "top_p": 0.9}, {"temperature": 1.4, "top_k": 40}, {"min_p": 0.05},
    {"repeat_penalty": 1.2}, {"frequency_penalty": 0.4, "presence_penalty": 0.2}, {"mirostat": 2},
    {"xtc_probability": 0.5, "xtc_threshold": 0.02}, {"dry_multiplier": 1.5, "dry_allowed_length": 1},
    {"typical_p": 0.9}, {"token_healing": 2}, {"logit_bias": {11: 3.0, 3: -9.0}})
ENDINGS = (FREE, Ending(never=True), Ending(least=5), Ending(least=3, also=frozenset(range(40, 160))), FREE)


@dataclass(frozen=True)
class Circumstances:
    """How an answer came about. Of all of these only `kv_cache` may change it."""

    slots: int = 1
    streamed: bool = False
    kv_cache: str = "f16"
    prefixes: bool = False
    speculate: bool = False
    draft: bool = False
    rows: int = 64


ALL = (
    Circumstances(), Circumstances(slots=8, speculate=True), Circumstances(slots=3, speculate=True, draft=True),
    Circumstances(slots=4, prefixes=True), Circumstances(slots=8, prefixes=True, speculate=True, rows=16),
    Circumstances(slots=2, streamed=True), Circumstances(slots=8, streamed=True, speculate=True),
    Circumstances(slots=4, streamed=True, prefixes=True), Circumstances(slots=4, kv_cache="q8", prefixes=True),
    Circumstances(slots=8, kv_cache="q4", speculate=True), Circumstances(slots=2, kv_cache="q8q4", prefixes=True))


@contextmanager
def engine_in(how: Circumstances, gguf: bytes) -> Iterator[Engine]:
    """An engine in these circumstances."""
    from tests.support.engines import opened
    from tests.support.streams import stored

    options = EngineOptions(
        threads=1, slots=how.slots, context_length=CONTEXT, kv_cache=how.kv_cache, speculate=how.speculate,
        rows=how.rows, prefix_nbytes=(8 << 20) if how.prefixes else 0)
    with ExitStack() as stack:
        if how.streamed:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            source: Any = stored("compiled sealed", folder, gguf, 1 << 16)[1]()
            stack.callback(source.close)
        else:
            source = stack.enter_context(opened(gguf))
        draft = stack.enter_context(opened(gguf)) if how.draft else None
        yield stack.enter_context(Engine.open(source, options, draft=draft))


def request(engine: Engine, number: int) -> GenerationRequest:
    """The request of a number: some share their beginning, one in seven is constrained, others say when they may end.
    """
    chance = random.Random(number)
    prompt = [1, *random.Random(number % 5).choices(range(3, 12), k=66)]
    prompt += chance.choices(range(3, 200), k=1 + number % 9)
    values = dict(VALUES[number % len(VALUES)])
    if number % 3 == 0:
        values |= {"temperature": 1.1, "top_k": 30}
    order = list(SAMPLERS)
    chance.shuffle(order)
    constraint = engine.constraints.compile(_schema()) if number % 7 == 0 else None
    if constraint is not None:
        values.pop("token_healing", None)
    sampling = Sampling(**values, samplers=tuple(order), seed=chance.getrandbits(64))
    if constraint is not None:
        return GenerationRequest(prompt, 4 * TOKENS, sampling, constraint=constraint)
    return GenerationRequest(prompt, TOKENS, sampling, ending=ENDINGS[number % len(ENDINGS)])


def _schema() -> Any:
    from appliance.constraint.spec import JsonSchema

    return JsonSchema({"type": "object", "properties": {"a": {"enum": list(WORDS)}}, "required": ["a"],
                       "additionalProperties": False})


def opening(asked: GenerationRequest, chosen: list[int], how: Circumstances, ends: frozenset[int]) -> dict[str, Any]:
    """An answer as a receipt's opening has it, but for salts."""
    sampling = asked.sampling.as_json()
    sampling["logit_bias"] = {str(token): bias for token, bias in sampling["logit_bias"].items()}
    ending = chosen[-1] if chosen and chosen[-1] in asked.ending.ends(ends) else None
    ends_too = {} if asked.ending == FREE else {"ends": asked.ending.as_json()}
    return {"prompt_tokens": list(asked.prompt_ids), "tokens": chosen[:-1] if ending is not None else chosen,
            "ending": ending, "sampling": sampling, "seed": str(asked.sampling.seed), "max_tokens": asked.max_tokens,
            "stop": [], "constraint": None if asked.constraint is None else asked.constraint.text,
            "kv_cache": how.kv_cache, **ends_too}


def answers(how: Circumstances, gguf: bytes, numbers: Sequence[int]) -> list[dict[str, Any]]:
    """Openings of answers that ran beside each other, as many as there are slots."""
    from appliance.engine.scheduler import Scheduler

    with engine_in(how, gguf) as engine:
        scheduler = Scheduler(engine, queue=len(numbers) + 1, tenants=["a", "b"],
                              prefix_lifetime=60.0 if how.prefixes else None)
        ends, wrong, open_ones = frozenset(engine.tokenizer.eot_ids), list[Exception](), [len(numbers)]
        done, made, found = threading.Event(), dict[int, list[int]](), dict[int, GenerationRequest]()

        def ended() -> None:
            open_ones[0] -= 1
            if not open_ones[0]:
                done.set()

        def advanced(number: int, advance: Any) -> None:
            if advance.token is not None:
                made[number].append(advance.token)
            if advance.finish_reason is not None:
                ended()

        def failed(error: Exception) -> None:
            wrong.append(error)
            done.set()

        try:
            for number in numbers:
                made[number], found[number] = [], request(engine, number)
                scheduler.submit(found[number], "ab"[number % 2],
                                 lambda *advance, number=number: advanced(number, advance[-1]), failed)
            done.wait(600)
        finally:
            scheduler.close()
        if wrong:
            raise wrong[0]
    return [opening(found[number], made[number], how, ends) for number in numbers]


def again(engine: Engine, said: dict[str, Any]) -> bool:
    """Whether an answer is computed again, token for token."""
    asked, chosen = replay.request(said)
    return replay.check(engine, asked, chosen, said["constraint"]).wrong is None


def count_again(kernels: table.KernelTable, model: Path, openings: list[dict[str, Any]]) -> int:
    """How many are computed again with these kernels."""
    from appliance.engine.forward.packing import Packing
    from appliance.families.tensors import roles_of
    from appliance.models.sources.resident import open_resident

    same = 0
    for kind in sorted({said["kv_cache"] for said in openings}):
        source = open_resident(model, hashlib.sha256(model.read_bytes()).digest(), interleave=Packing(kernels),
                               roles=roles_of)
        try:
            with Engine.open(source, EngineOptions(context_length=CONTEXT, slots=1, kv_cache=kind, threads=1),
                             kernels=kernels) as engine:
                same += sum(again(engine, said) for said in openings if said["kv_cache"] == kind)
        finally:
            source.close()
    return same


def elsewhere(target: str, library: Path, model: Path, openings: Path) -> int:
    """How many are computed again in a process with another target's kernels."""
    done = subprocess.run([sys.executable, "-m", "tests.support.replays", "--again", target, library, model, openings],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def measure(count: int) -> None:
    """Make so many answers, over all circumstances, and compute each again here and by each target of this CPU."""
    from tests.support import libraries
    from tests.support.engines import kernels, synthetic_model

    gguf, each = synthetic_model(MODEL), count // len(ALL)
    openings = [said for place, how in enumerate(ALL)
                for said in answers(how, gguf, range(place * each, (place + 1) * each))]
    print(f"{len(openings)} answers, {sum(len(said['tokens']) for said in openings)} tokens, "
          f"{sum(said['constraint'] is not None for said in openings)} constrained", flush=True)
    with tempfile.TemporaryDirectory() as place:
        model, kept = Path(place) / "model.gguf", Path(place) / "openings.json"
        model.write_bytes(gguf)
        kept.write_text(json.dumps(openings))
        best = targets.detect().name
        print(f"{best}: {count_again(kernels(), model, openings)} the same", flush=True)
        for target in targets.known("x86_64"):
            if target.name in ("avx2", "portable") and target.name != best:
                print(f"{target.name}: {elsewhere(target.name, libraries.library(target.name), model, kept)} the same",
                      flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--again":
        target, library, model, openings = sys.argv[2:]
        loaded = table.load(target) if library == "-" else table.load(target, Path(library))
        print(count_again(loaded, Path(model), json.loads(Path(openings).read_text())))
    else:
        measure(int(sys.argv[1]))
