"""Self-test of the kernels that read text, on fixed texts. Patterns take every path through the
search for matches; small vocabularies serve texts to tokens, and tokens to bytes."""

from __future__ import annotations

import numpy as np

from appliance.boot.selftest import inputs
from appliance.kernels.runtime.table import KernelTable
from appliance.matching import Automaton, points
from appliance.oblivious import AnswerTexts, Sweeps, SweptStops
from appliance.oblivious.contents import BodyReader
from appliance.text.tokenizer import Tokenizer, load
from appliance.text.tokenizer.tokenizer import byte_letters

LETTERS = "aabbbcc1- \né"
HELD = 60  # characters at the end of the text that are looked at as if more came
PATTERNS = (  # ASCII where they ask for words: tables of all characters take longer than the search
    r"[ab]{1,78}[ab]{1,78}[c1]",  # runs, by doubling
    r"[^\n]{1,70}?c",  # a lazy run
    r"(?:ab|c){2,40}1?",  # a loop that counts, and planes
    r"(?a:(?:ab|c){1,9}?\b)",  # a lazy loop
    r"(?:a|ab)(?:b|bc){1,3}?",  # copies
    r"(?:a?b?){1,1}c?1?-?\n?é",  # parts that may be empty
    r"(?:ab){1,20}(?:ba){0,3}?",  # runs two characters wide
    r"a|bb|c1|-é\n?|1",  # alternatives
    r"(?am)^[^a]{1,3}$|\Bc$",  # places
    r"(?a)\A\w|.\Z|b\n$",
    "|".join(chr(code) for code in range(0x100, 0x150)) + "|a[^bé]",  # more classes than a word has bits
)


def text() -> str:
    """Return the fixed text."""
    return "".join(LETTERS[byte % len(LETTERS)] for byte in inputs.stream("search text", 5000).tolist())


def find_spans(table: KernelTable) -> bytes:
    """Return each pattern's matches, and the positions that text to come may matter for, as int64.
    """
    codes, found = points(text()), []
    for pattern in PATTERNS:
        automaton = Automaton(pattern, table)
        found += [*automaton.spans(codes), automaton.undecided(codes, len(codes) - HELD)]
    return np.concatenate([part.reshape(-1) for part in found]).tobytes()


MERGES = ("a b", "b b", "ab b", "c 1", "Ġ a", "Ġ Ġ", "Ċ Ċ", "a a", "aa aa", "abb b", "c1 1", "Ã ©", "' s", "s s")
MARKS = ("<ab>", "b>", "<|end|>")
TEXTS = ("", "aabbbcc1- \né", " a  aa\t\n\n bb's'S 11 1<ab>b><|end|> \n\u3000é\u0301𝟙-", "aaaaaaaa" * 5 + "abbb" * 9)
CUTS = ("smollm", "gpt-2", "qwen2", "dbrx", "llama3")
WHOLES = ("bbb", "aabb")  # tokens that no merges make


def vocabulary(pre: str) -> Tokenizer:
    """Return a small tokenizer that cuts words in some way."""
    tokens = [*byte_letters(), *(merge.replace(" ", "") for merge in MERGES), *WHOLES, *MARKS]
    return load({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre, "tokenizer.ggml.tokens": tokens,
                 "tokenizer.ggml.merges": list(MERGES), "tokenizer.ggml.token_type": [1] * (len(tokens) - 3) + [3] * 3})


def encode_text(table: KernelTable) -> bytes:
    """Return the tokens of the texts, cut in each way, as int32. In a part of each, marks are not
    trusted."""
    found: list[int] = []
    for pre in CUTS:
        tokenizer = vocabulary(pre)
        tokenizer.sweeping = Sweeps(tokenizer, table)
        for text in TEXTS:
            found += tokenizer.encode(text, parse_special=True, untrusted=[(0, len(text) // 2)])
    return np.array(found, np.int32).tobytes()


def token_row(table: KernelTable) -> bytes:
    """Return the bytes of all tokens, one after the other."""
    rows = Sweeps(tokenizer := vocabulary("gpt-2"), table)
    return b"".join(map(rows.piece, range(tokenizer.vocab_size)))


STOPS = ("a1", "bbb", "aabb", "bb", "- \né", "c" * 70, "é" + "a" * 90)  # more bytes than a word has bits


def stopped(count: int) -> range:
    """Return where parts of a text of `count` characters begin; one of them is its end."""
    return range(count - 90, -1, -250)


def find_stops(table: KernelTable) -> bytes:
    """Return what passes of the text's parts, each in pieces of 3 characters, and what ended it."""
    whole, found = text() + "c" * 90, list[bytes]()
    for at in stopped(len(whole)):
        stops = SweptStops(STOPS, table)
        passed = [stops.push(whole[start:start + 3]) for start in range(at, at + 120, 3)]
        found += ["|".join([*passed, stops.flush(), str(stops.found)]).encode()]
    return b"".join(found)


BODY = ('{"model": "m", "messages": [{"role": "user", "content": " \\n a\\u0041\\u00e9\\u4e2d\\ud83d\\ude00\\"\\\\\\/'
        '\\t|é中😀\\u0020"}, {"role": "assistant", "content": [{"type": "text", "text": "%s"}]}], "stop": "x", '
        '"prompt": ["\\u3000b", "c"]}')
FAULTS = ("\\ud83d", "\\udc00", "\\x", "\\u00g0", "a\x01", "b\\u00")


def bodies() -> list[str]:
    """Return bodies, with and without faults in their texts."""
    whole = [BODY % text()[:600].replace("\n", "\\n"), *(BODY.replace("\\u3000", each) % "a" for each in FAULTS)]
    return [whole[0].replace("\\u3000", ""), *whole]


def read_string(table: KernelTable) -> bytes:
    """Return bodies with stand-ins in the place of their texts, and the texts. A body with a fault
    is an X."""
    reader, found = BodyReader(table), list[bytes]()
    for body in bodies():
        read = reader.read(body.encode())
        found.append(b"X" if read is None else read[0])
        found += [] if read is None else [bytes(read[1].bytes_of(number)) for number in range(len(read[1]))]
    return b"|".join(found)


def characters() -> bytes:
    """Return an answer's bytes, each of which is a token: whole characters, parts of some, any
    bytes."""
    parts = [bytes((lead, second, *rest, 97)) for lead in (0xC1, 0xC2, 0xE0, 0xE1, 0xED, 0xF0, 0xF1, 0xF4, 0xF5)
             for second in (0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC2)
             for rest in ((), (0xBF, 0x80)[:1 + (lead > 0xEF)])]
    return "é中😀".encode() + b"".join(parts) + inputs.stream("answer", 100).tobytes()


def quoted() -> bytes:
    """Return an answer's bytes: what JSON writes as it is, and what it does not."""
    return ("".join(map(chr, range(40))) + '\x7f"\\é中😀\ufffd' * 3).encode() + inputs.stream("quoted", 60).tobytes()


def complete_text(table: KernelTable) -> bytes:
    """Return the text that comes with each token of `characters`, as JSON has it."""
    return _told(table, characters())


def write_string(table: KernelTable) -> bytes:
    """Return the text that comes with each token of `quoted`, as JSON has it."""
    return _told(table, quoted())


def _told(table: KernelTable, answer: bytes) -> bytes:
    tokenizer = vocabulary("gpt-2")
    tokens = {tokenizer.piece(token): token for token in range(256)}
    texts = AnswerTexts(Sweeps(tokenizer, table).writer)
    swept = texts.begin((), ())
    return b"|".join(texts.fill(swept.push(tokens[bytes((each,))]).encode()) for each in answer)
