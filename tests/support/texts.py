"""Texts that are hard to tokenize: borders of every rule of every pre-tokenizer, and all planes of Unicode."""

from __future__ import annotations

import random

HARD = [
    "", " ", "  ", "   ", "\t", "\n", "\n\n", "\r", "\r\n", "\r\n\r\n", " \n", "\n ", " \n \n  x", "\t\t\tx",
    "x   ", "x\n\n\n y",
    "a b", "a  b", "a   b", "  a", " a ", "a\tb", "a \tb", "a\u00a0b", "a\u3000b \u3000\u3000c",
    "\u2028x\u2029\u2009 y", "\x85x\x0b\x0cy",
    "it's we'll I'd they've you're I'm can't", "IT'S WE'LL I'D THEY'VE YOU'RE I'M CAN'T", "'s's ''s '",
    "x's\u2019s x'S y'Ll", "'", "' '", "'re",
    "1", "12", "123", "1234", "12345678901234567890", "1 23 456 7890", "a1b22c333d4444", "3.14159e-10",
    "1,234,567.89", "0x1F", "\u0661\u0662\u0663\u0664 \u00bd\u00b2\u2167 \U0001d7d8\U0001d7d9",
    "Hello, world!", "HELLO hElLo helloWorld HelloWORLD", "foo_bar-baz.qux/quux\\corge", "!!!???...",
    "(((a)))[[b]]{{c}}", "a.b,c;d:e", "<|>", "<<>>", "$+<=>^~|`",
    "#!/bin/sh\n\necho \"$x\" | cat > /dev/null\n",
    "def f(x):\n    return x + 1\n\n\tif y:  # z\n", "https://example.org/a?b=c&d=%20#e", "user@example.org",
    "C:\\dir\\f.txt",
    "Zürich Straße naïve façade ÀÉÎÕÜ", "e\u0301 o\u0308 a\u030a\u0323", "\u0301\u0301x",
    "Привет, мир! Это тест.", "Γειά σου Κόσμε", "שלום עולם", "مرحبا بالعالم ٣", "नमस्ते दुनिया क्षत्रिय",
    "สวัสดีชาวโลก ๑๒๓", "안녕하세요 세계", "こんにちは世界、テスト。カタカナ",
    "你好，世界！今天是2024年。", "𠀀𠀁 一龥龦 㐀", "ﬁﬂ ｆｕｌｌ　ｗｉｄｔｈ！",
    "ſ K Å ß ẞ İ ı",
    "😀", "😀😀 x😀y", "👩‍👩‍👧‍👦 👍🏽 🇩🇪 ☃️", "\U0001f3f4\U000e0067\U000e0062\U000e007f", "\u200d\u200b\ufeff\u00ad",
    "\ue000\uf8ff \U000f0000\U0010fffd", "\x00", "a\x00b\x01\x02\x1b[0m\x7f", "\u2581x \u2581\u2581y",
    "<0x0A><0x41>", "\ufffd\uffff\ufffe",
    "<s> </s> <unk> <pad>", "<|endoftext|> <|im_start|>user\n<|im_end|>", "<|eot_id|><|start_header_id|>",
    "[INST] [/INST] <<SYS>>", "<|endof text|> <|im_star", "<start_of_turn>x<end_of_turn>",
    "<｜begin▁of▁sentence｜>", "<fim_prefix><fim_suffix><|fim_middle|>",
    "a" * 70, "ab" * 50, " " * 70, "\n" * 70, "1" * 70, "!" * 70, "é" * 40, "世" * 40, "a " * 40, " \n" * 30,
    "\t \r\n" * 15, "'" * 20, "x" + " " * 600 + "y", "=" * 40 + "\n" + "-" * 40,
]

_POOLS = [
    (0x20, 0x7f), (0x80, 0x250), (0x300, 0x370), (0x370, 0x530), (0x590, 0x700), (0x900, 0xe80),
    (0x1100, 0x1200), (0x2000, 0x2c00), (0x3000, 0x3200), (0x4e00, 0xa000), (0xac00, 0xd7a4),
    (0xf900, 0x10000), (0x10000, 0x20000), (0x20000, 0x110000), (0x00, 0x20),
]


def random_texts(count: int, seed: int) -> list[str]:
    """Texts of up to 40 characters from a few ranges of Unicode each, with spaces and newlines between."""
    rng = random.Random(seed)
    texts = []
    for _ in range(count):
        pools = rng.sample(_POOLS, rng.randint(1, 4))
        letters = (chr(rng.randrange(*rng.choice([*pools, (0x20, 0x21), (0x61, 0x7b), (0x30, 0x3a), (0x0a, 0x0b)])))
                   for _ in range(rng.randint(1, 40)))
        texts.append("".join(letter for letter in letters if not "\ud800" <= letter <= "\udfff"))
    return texts


TEXTS = [*HARD, *random_texts(60, seed=1)]



def around(special: list[str]) -> list[str]:
    """Texts with special tokens whole, cut, doubled and with white space around."""
    texts = []
    for index, token in enumerate(special):
        other = special[(index * 7 + 3) % len(special)]
        texts += [token, f"x{token}y", f" {token} \n z", token + other, token[:-1] + other[1:],
                  f"{token[:-1]} {token[1:]}"]
    return texts
