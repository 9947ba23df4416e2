"""Random HCL texts: of literals, in every spelling that HashiCorp's parser knows, and some that it does not."""

from __future__ import annotations

import random

SOUP = ["a", "é", "$", "$", "%", "{", "}", '"', "\\n", '\\"', "\\\\", "\\u00e9", "\\U0001F600", "\\q", "${", "$${",
        "%%{", "#", "//", "/*", "\t", " ", "<<E", "[", "'", "e\u0301", "\u00a0", "  ", "\\ud83d",
        "\\ude00", "\\u12", "\u200b"]
NUMBERS = ["0", "1", "-1", "-12", "1.5", "-0.5", "1e3", "1E-2", "-2.5e+3", "007", "0.1", "9007199254740991", "1.0",
           "-0", "15e-1", "10e-1", "1.50E+2", "-0.0", "1e", "0e5"]
LINES = ["x", "", "E x", "$${y}", "$", "%%{", "  ", "\\n", '"q"', "\u00a0z", "${"]
PIECES = ["a", "b = 1", "= ", "{", "}", "[", "]", '"x"', '"', "${", "<<E\n", "E\n", "\n", " ", ", ", "# c\n", "/* c */",
          "1", "-2", "2.5", "true", "null", "(", ")", "+", ".", "?", ":", "for", "\n}\n", "\\n", "$$", "@", "=>", "-",
          "\t", "b.c", "x ", '"a" = 1\n', "0x", "::", "[*]", "<<-E\n  x\n  E\n", "in = 1\n", 'if "x" {}\n',
          "\u00a0", "é", "1e3"]


def string(rng: random.Random) -> str:
    """Return a quoted text, not always a right one."""
    return '"' + "".join(rng.choice(SOUP) for _ in range(rng.randrange(5))) + '"'


def heredoc(rng: random.Random) -> str:
    """Return a text of lines."""
    marker = rng.choice(["E", "F", "ÄÖ", "e-1"])
    indent = ["", " ", "  ", "\t"]
    lines = "".join(rng.choice(indent) + rng.choice(indent) + rng.choice(LINES) + "\n" for _ in range(rng.randrange(5)))
    return f"<<{rng.choice(['', '-'])}{marker}\n{lines}{rng.choice(indent)}{marker}{rng.choice(['', ' '])}"


def value(rng: random.Random, depth: int = 0) -> str:
    """Return a literal, list or object."""
    kind = rng.randrange(8 if depth < 3 else 5)
    if kind < 2:
        return string(rng)
    if kind < 4:
        return rng.choice([*NUMBERS, "true", "false"])
    if kind == 4:
        return heredoc(rng) if rng.random() < 0.4 else string(rng)
    items = [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    items = [item + "\n" if item.startswith("<<") else item for item in items]
    if kind < 7:
        gap = rng.choice(["", " ", "\n", " # c\n", " /* c */ ", "/*\n*/"])
        return "[" + gap + f",{gap}".join(item + gap for item in items) + rng.choice(["", "," if items else ""]) + "]"
    fields = [rng.choice(["k%d", '"k %d"', "in%d"]) % number + rng.choice(["=", " = ", ":", " : "]) + item
              + ("" if item.endswith("\n") else rng.choice([", ", "\n", ",\n"])) for number, item in enumerate(items)]
    return "{" + rng.choice(["", " ", "\n"]) + "".join(fields) + "}"


def body(rng: random.Random, depth: int = 0) -> str:
    """Return attributes and blocks."""
    lines = []
    for number in range(rng.randrange(4)):
        if depth < 3 and rng.random() < 0.35:
            labels = "".join(" " + rng.choice([string(rng), '"l"']) for _ in range(rng.randrange(3)))
            gap, comment = rng.choice([" ", "", " /* c */ "]), rng.choice(["", " # c"])
            lines.append(f"b{number}{labels}{gap}{{{comment}\n{body(rng, depth + 1)}}}")
        else:
            name = rng.choice(["a", "in", "for", "true", "null", "if", "a-b"])
            made = value(rng)
            tail = "" if made.startswith("<<") else rng.choice(["", "  ", ' # x " {', " /* y */"])
            lines.append(f"{name}{number}{rng.choice(['=', ' = ', ' = /* c */ '])}{made}{tail}")
    gaps = ["", "\n", "  ", "\t", "# c\n", "/* x\n */\n"]
    end = rng.choice(["\n", "\n\n"] if depth else ["\n", "\n# end"])
    return "\n".join(rng.choice(gaps) + line for line in lines) + end


def mutated(text: str, rng: random.Random) -> str:
    """Return a text with some places changed."""
    for _ in range(rng.randrange(1, 3)):
        start = rng.randrange(len(text) + 1)
        text = text[:start] + rng.choice(["", *PIECES]) + text[start + rng.choice([0, 0, 1, 2, 5]):]
    return text
