"""`python -m benchmarks.topics`: whether a host that watches all pages of a process tells the topic
of a text.

Texts on four topics have the same number of bytes, and words that are drawn. One of four parts
works: `text` makes tokens of a text. `chat` makes a prompt's tokens of the JSON of a chat. `events`
makes events of one size of a text's tokens, one for each. `answer` chooses these tokens before, by
logits with a peak at each.

The whole process is traced: its heap, its libraries and its tables, but not its stacks and the C
library. A classifier learns from half of the traces how often each page was entered, and each two
pages in a row. The other half judges it. Pages of the tokenizer as it is must tell the topic of a
text, which shows that the tracer sees them.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.api import wire
from appliance.api.answers import AnswerFacts, AnswerPart
from appliance.api.shapes import AnswerShape, TextShape
from appliance.cli import numbers
from appliance.engine.decode.chain.scratch import Scratch
from appliance.engine.decode.generation import Generation, GenerationRequest
from appliance.engine.decode.sampler import Sampling
from appliance.oblivious import AnswerTexts, Sweeps
from appliance.oblivious.contents import BodyReader
from appliance.service.admission import prompts
from appliance.service.admission.privacy import pad_event
from appliance.service.delivery.filled import FilledShape
from appliance.text.stops import StopFilter
from appliance.text.template import ChatTemplate
from appliance.text.tokenizer import Tokenizer
from appliance.text.tokenizer.stream import TextStream
from tests.support import oblivious
from tests.support.page_traces import PageTracer

TOPICS = {
    "medicine": "patient fever dose nurse clinic blood artery tumour vaccine surgeon symptom pulse liver infection",
    "law": "contract court judge plaintiff tenant clause lawsuit verdict appeal witness statute damages trustee",
    "kitchen": "butter onion simmer garlic flour oven whisk pepper broth recipe saucepan roast vinegar dough",
    "machines": "compiler thread pointer kernel socket buffer stack latency deadlock cache packet driver register",
}
COMMON = ("the", "of", "and", "to", "in", "is", "that", "for", "with", "was", "on", "are", "this", "by", "from", "or")
_OPEN = 48  # pages that may be used at a time
_ANSWERED, _PADDED = 16, 512  # tokens of an answer, bytes of an event
_STOPS = ("\n\nUser:",)

Part = Callable[[str], Callable[[], int]]
"""Prepares for a text. The result does the work that is traced."""


def texts(count: int, nbytes: int, seed: int, topics: int, *, alike: bool) -> list[tuple[int, str]]:
    """So many texts of exactly so many bytes, each with its topic's number. `alike`: the tokens of
    all have the same lengths, in the same order, and bytes may be a few less."""
    rng, lists = random.Random(seed), [words.split() for words in TOPICS.values()][:topics]
    lengths = {word: _lengths(word) for words in (*lists, COMMON) for word in words}
    shared = sorted(set.intersection(*({lengths[word] for word in words} for words in lists)))
    order, size = list[tuple[int, ...]](), 0
    while size < nbytes:
        order.append(rng.choice(shared))
        size += sum(order[-1])

    def drawn(topic: int) -> str:
        words = (rng.choice(lists[topic] if rng.random() < 0.4 else COMMON) for _ in range(nbytes))
        return " ".join(words)[:nbytes]

    def drawn_alike(topic: int) -> str:
        fitting = ([word for word in (*lists[topic], *COMMON) if lengths[word] == each] for each in order[:-1])
        return "".join(f" {rng.choice(words)}" for words in fitting)

    found = [(number % topics, (drawn_alike if alike else drawn)(number % topics)) for number in range(count)]
    rng.shuffle(found)
    return found


def _lengths(word: str) -> tuple[int, ...]:
    """The lengths of a word's tokens, in bytes."""
    plain = oblivious.both()[0]
    return tuple(len(plain.piece(token)) for token in plain.encode(f" {word}"))


def text_part(swept: bool) -> Part:
    """From a text to its tokens."""
    tokenizer = oblivious.both()[swept]
    return lambda text: lambda: len(tokenizer.encode(text))


def chat_part(swept: bool) -> Part:
    """From the JSON of a chat to the tokens of its prompt."""
    tokenizer = oblivious.both()[swept]
    template = ChatTemplate(oblivious.metadata()["tokenizer.chat_template"], {"eos_token": "<|im_end|>"})

    bodies = BodyReader(oblivious.kernels())

    def count(body: bytes) -> int:
        written, contents = (bodies.read(body) if swept else None) or (body, None)
        request = wire.parse(written, wire.ChatRequest)
        taken = prompts.take_turns(request)
        prompts.drop_text(request)
        return prompts.encode(request, taken, template, tokenizer, (), len(body), stand_ins=contents)[0].count

    def prepared(text: str) -> Callable[[], int]:
        body = {"model": "demo", "messages": [{"role": "user", "content": text}], "max_tokens": 16}
        return functools.partial(count, json.dumps(body).encode())

    return prepared


def answer_part(swept: bool) -> Part:
    """From logits to the events of an answer of `_ANSWERED` tokens."""
    plain, tokenizer = oblivious.both()[0], oblivious.both()[swept]
    scratch = Scratch(plain.vocab_size, oblivious.kernels(), sweeps=swept)
    logits, places = np.zeros(plain.vocab_size, np.float32), np.arange(plain.vocab_size)

    def count(tokens: NDArray[np.int64]) -> int:
        texts = texts_of(tokenizer)
        request = GenerationRequest([1], _ANSWERED, Sampling(seed=1, top_k=40, top_p=0.95), _STOPS, texts=texts)
        generation = Generation(request, tokenizer, plain.vocab_size, 2 * _ANSWERED, scratch)
        return written(texts, (generation.advance(peaks(number)).text for number in tokens))

    def peaks(token: np.int64) -> NDArray[np.float32]:
        np.multiply(places == token, np.float32(30), out=logits)
        return logits

    return lambda text: functools.partial(count, np.array(plain.encode(text)[:_ANSWERED]))


def events_part(swept: bool) -> Part:
    """From the tokens of an answer to its events."""
    plain, tokenizer = oblivious.both()[0], oblivious.both()[swept]

    def count(tokens: NDArray[np.int64]) -> int:
        texts, stream, stops = texts_of(tokenizer), TextStream(tokenizer), StopFilter(_STOPS)
        told = None if texts is None else texts.begin(_STOPS, ())
        return written(texts, (told.push(token) if told else stops.push(stream.push(token))
                               for token in tokens.tolist()))  # numbers that the tokenizer does not share

    return lambda text: functools.partial(count, np.array(plain.encode(text)))


def texts_of(tokenizer: Tokenizer) -> AnswerTexts | None:
    """The memory of an answer's texts; None for the tokenizer as it is."""
    return AnswerTexts(tokenizer.sweeping.writer) if isinstance(tokenizer.sweeping, Sweeps) else None


def written(texts: AnswerTexts | None, pieces: Iterable[str]) -> int:
    """Make an event of each piece of an answer, of `_PADDED` bytes; how many bytes all have."""
    shape: AnswerShape = TextShape(AnswerFacts("req-1", "demo", "fp"), with_usage=False, created=0)
    shape = shape if texts is None else FilledShape(shape, texts)
    nbytes = sum(len(pad_event(shape.more([AnswerPart(0, piece)], paced=True), _PADDED)) for piece in pieces)
    if texts is not None:
        texts.close()
    return nbytes


PARTS: dict[str, Callable[[bool], Part]] = {"text": text_part, "chat": chat_part, "answer": answer_part,
                                               "events": events_part}


def traces(part: Part, given: Sequence[tuple[int, str]], folder: Path) -> tuple[list[bytes], list[int]]:
    """The pages in their order, and how many tokens there were, or bytes of an answer."""
    for _, text in given[:20]:
        part(text)()
    found, counts = [], []
    works = [part(text) for _, text in given]  # all before, since the free parts of the heap tell what was done last
    gc.collect()
    gc.disable()
    tracer = PageTracer([], folder, _OPEN)
    tracer.add_process()
    for work in works:
        with tracer.tracing():
            count = work()
        found.append(tracer.pages)
        counts.append(count)
    gc.enable()
    return found, counts


def features(found: Sequence[bytes]) -> NDArray[np.float64]:
    """A row for each trace: how often pages were entered, and pairs of them."""
    rows = [np.frombuffer(pages, np.uint64) >> np.uint64(12) for pages in found]
    single = [Counter(row.tolist()) for row in rows]
    double = [Counter((row[:-1] * np.uint64(1_000_003) ^ row[1:]).tolist()) for row in rows]
    return np.hstack([_counts(single, 4000), _counts(double, 4000)])


def _counts(found: Sequence[Counter[int]], most: int) -> NDArray[np.float64]:
    """Logarithms of counts, of the keys whose number differs most often."""
    spread = Counter[int]()
    for each in found:
        spread.update(each.keys())
    keys = [key for key, _ in sorted(spread.items(), key=lambda item: abs(item[1] - len(found) / 2))[:most]]
    keys += [key for key in spread if spread[key] == len(found)][:most]
    return np.log1p(np.array([[each.get(key, 0) for key in keys] for each in found], np.float64))


def judge(rows: NDArray[np.float64], topics: NDArray[np.int64]) -> float:
    """The share of the second half that the nearest centre of the first one names rightly."""
    half = len(rows) // 2
    spread = rows[:half].std(0)
    rows = (rows[:, spread > 0] - rows[:half, spread > 0].mean(0)) / spread[spread > 0]
    centres = np.array([rows[:half][topics[:half] == topic].mean(0) for topic in range(topics.max() + 1)])
    weights = centres.std(0) ** 2  # what tells topics counts
    distances = (((rows[half:, None] - centres) ** 2) * weights).sum(2)
    return float((distances.argmin(1) == topics[half:]).mean())


def measure(form: str, part: str, given: Sequence[tuple[int, str]]) -> dict[str, Any]:
    """One form of the tokenizer, in a part."""
    with tempfile.TemporaryDirectory() as folder:
        found, counts = traces(PARTS[part](form == "oblivious"), given, Path(folder))
    topics, sizes = np.array([topic for topic, _ in given]), np.array(counts, np.float64)[:, None]
    return {"traces": len(found), "different": len(set(found)),
            "entries": int(np.median([len(each) // 8 for each in found])),
            "share": round(judge(features(found), topics), 3), "by_count": round(judge(sizes, topics), 3)}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.topics", description="topics by pages")
    for name, least, most, default, words in (("topics", 2, len(TOPICS), len(TOPICS), "topics"),
                                              ("count", 40, 100_000, 400, "texts"),
                                              ("bytes", 64, 4096, 256, "of a text"),
                                              ("seed", 0, 2**32, 1, "of what is drawn")):
        parser.add_argument(f"--{name}", type=numbers.whole(least, most), default=default,
                            help=f"{words} (default: %(default)s)")
    parser.add_argument("--part", choices=PARTS, default="text", help="what is traced (default: %(default)s)")
    parser.add_argument("--alike", action="store_true", help="tokens of all texts have the same lengths")
    parser.add_argument("--form", choices=("open", "oblivious"), action="append", help="default: both")
    arguments = parser.parse_args()
    given = texts(arguments.count, arguments.bytes, arguments.seed, arguments.topics, alike=arguments.alike)
    found = {form: measure(form, arguments.part, given) for form in arguments.form or ("open", "oblivious")}
    print(json.dumps({"part": arguments.part, "bytes": arguments.bytes, "topics": arguments.topics,
                      "alike": arguments.alike, **found}, indent=1))
    return int(arguments.part == "text" and "open" in found and found["open"]["share"] < 0.9)


if __name__ == "__main__":
    raise SystemExit(main())
