"""The pre-tokenizers by the names that `tokenizer.ggml.pre` may have: how text is cut into words
before merging.

A pre-tokenizer is a list of stages; each stage cuts the pieces that the stages before it left, and
what a stage does not match stays a piece. The patterns are those of the models' own tokenizer.json
files, in the form that llama.cpp (src/llama-vocab.cpp, src/unicode.cpp) gives them: where that
differs from the original, llama.cpp's reading counts, because model files are made for it. Classes
such as `\\p{L}` stand only within brackets; `splitting` says how each kind of stage is matched. All
patterns run in linear time: no nested repeat is ambiguous.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple


class Stage(NamedTuple):
    """One cut. `kind` is "class" (a pattern with Unicode classes), "exact" (a pattern on code
    points) or "function" (a name in `splitting`). An exact pattern counts only ASCII as digits, and
    all white space of Unicode as space."""

    kind: str
    rule: str


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How one family of models cuts text, and the defaults that come with its name."""

    stages: tuple[Stage, ...]
    ignore_merges: bool = False  # a word that is a token as a whole is not merged up from bytes
    add_bos: bool = False
    bos_by_default: bool = True  # without a key in the file, token 11 is the beginning of text
    byte_level: bool = True  # False: merges run on characters, spaces are written as U+2581
    whole_newlines: bool = False  # a run of newlines that is a token stays whole
    forced_bos: bool = False  # add_bos whatever the file says


# The parts of the patterns.
_CONTRACTION = r"'(?:[stmd]|re|ve|ll)"
_CONTRACTION_ANY_CASE = r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
_SPACES = r"\s+(?!\S)|\s+"
_LINES = r"\s*[\r\n]+"
_WORD = r"[^\r\n\p{L}\p{N}]?[\p{L}]+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+"


def _by_class(*patterns: str) -> Stage:
    return Stage("class", "|".join(patterns))


def _exact(pattern: str) -> Stage:
    return Stage("exact", pattern)


def _function(name: str) -> Stage:
    return Stage("function", name)


def _ranges(text: str) -> str:
    """The inside of a bracket from hexadecimal code points and ranges."""
    return "".join("-".join(rf"\U{int(end, 16):08x}" for end in part.split("-")) for part in text.split())


_GPT2 = _by_class(_CONTRACTION, r" ?[\p{L}]+", r" ?[\p{N}]+", _SIGNS, _SPACES)
_EACH_DIGIT = _by_class(r"[\p{N}]")
_DIGITS_BY_3 = _by_class(r"[\p{N}]{1,3}")
_THREE_DIGITS = _exact("[0-9][0-9][0-9]")
_NEWLINES = _exact(r"[^\n]+|\n+")


def _llama3(digits: str, word: str = _WORD, signs: str = _SIGNS + r"[\r\n]*", lines: str = _LINES) -> Stage:
    return _by_class(_CONTRACTION_ANY_CASE, word, digits, signs, lines, _SPACES)


_LLAMA3 = _llama3(r"[\p{N}]{1,3}")
_QWEN2 = _llama3(r"[\p{N}]")
_QWEN35 = _llama3(r"[\p{N}]", r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+", r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*")
_BAILING = _by_class(r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])", _WORD, r"[\p{N}]", _SIGNS + r"[\r\n]*",
                     r"\s*[\r\n]", _SPACES)
# A word may go on over single spaces: this equals (?:L M*(?: L M*)*)+ without its nested repeats.
_EXAONE_MOE = _llama3(r"[\p{N}]", r"[^\r\n\p{L}\p{N}]?[\p{L}](?:[\p{M}]| ?[\p{L}])*", _SIGNS + r"[\r\n/]?",
                      r"\s*[\r\n]")


def _two_case(upper: str, lower: str, contraction: str, digits: str) -> Stage:
    """Words cut where lower case turns to upper case; letters beyond ASCII count as both."""
    head = r"[^\r\n\p{L}\p{N}]?"
    return _by_class(f"{head}{upper}*{lower}+{contraction}", f"{head}{upper}+{lower}*{contraction}", digits,
                     _SIGNS + r"[\r\n/]*", _LINES, _SPACES)


_OPTIONAL = f"(?:{_CONTRACTION_ANY_CASE})?"
_TEKKEN = _two_case(r"[A-Z\p{l}]", r"[a-z\p{l}]", "", r"[\p{N}]")
_GPT4O = _two_case(r"[A-Z\p{l}]", r"[a-z\p{l}]", _OPTIONAL, r"[\p{N}]{1,3}")
_GRANITE = _two_case(r"[A-Z\p{l}\p{M}]", r"[a-z\p{l}\p{M}]", _OPTIONAL, r"[\p{N}]{1,3}")
_TINY_AYA = _two_case(r"[\p{L}\p{M}]", r"[\p{L}\p{M}]", _OPTIONAL, r"[\p{N}]{1,3}")
_YOUTU = _two_case(r"[\p{L}\p{M}]", r"[\p{L}\p{M}]", _OPTIONAL, r"[\p{N}]")
_KIMI = _by_class(r"[\p{Han}]+", r"[^\r\n\p{L}\p{N}\p{Han}]?[\p{L}]+" + _OPTIONAL, r"[\p{N}]{1,3}",
                  r" ?[^\s\p{L}\p{N}\p{h}]+[\r\n]*", _LINES, _SPACES)

_ASCII_SIGNS = r"!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~"
_CJK_KANA = _exact(f"[{_ranges('4e00-9fa5 3040-309f 30a0-30ff')}]+")
_DEEPSEEK3_WORDS = (rf"[{_ASCII_SIGNS}][A-Za-z]+", r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+")
_DEEPSEEK3_TAIL = _by_class(*_DEEPSEEK3_WORDS, r" ?[\p{P}\p{S}]+[\r\n]*", _LINES, _SPACES)
_SPARK_TAIL = _by_class(*_DEEPSEEK3_WORDS, r" ?[\p{P}\p{S}]+", r"[\r\n]", _SPACES)
_DEEPSEEK3 = PreTokenizer((_DIGITS_BY_3, _CJK_KANA, _DEEPSEEK3_TAIL))
_DEEPSEEK_CJK = _exact(f"[{_ranges('4e00-9fa5 800-4e00 ac00-d7ff')}]+")
_DEEPSEEK_LETTERS = _ranges(
    "41-5a 61-7a b5 c0-d6 d8-f6 f8-1ba 1bc-1bf 1c4-293 295-2af 370-373 376 377 37b-37d 37f 386 388-38a 38c "
    "38e-3a1 3a3-3f5 3f7-481 48a-52f 531-556 10a0-10c5 13a0-13f5 13f8-13fd 1c90-1cba 1cbd-1cbf 1d00-1d2b "
    "1d6b-1d77 1d79-1d9a 1e00-1f15 1f18-1f1d 1f20-1f45 1f48-1f4d 1f50-1f57 1f59 1f5b 1f5d 1f5f-1f7d 1f80-1fb4 "
    "1fb6-1fbc 1fbe 1fc2-1fc4 1fc6-1fcc 1fd0-1fd3 1fd6-1fdb 1fe0-1fec 1ff2-1ff4 1ff6-1ffc 2102 2107 210a-2113 "
    "2115 2119-211d 2124 2126 2128 212a-212d 212f-2134 2139 213c-213f 2145-2149 214e 2183 2184 2c00-2c7b "
    "2c7e-2ce4 2ceb-2cee 2cf2 2cf3 a640-a66d a680-a69b a722-a76f a771-a787 a78b-a78e ab70-abbf fb00-fb06 "
    "fb13-fb17 ff21-ff3a ff41-ff5a 10400-1044f 104b0-104d3 104d8-104fb 10c80-10cb2 10cc0-10cf2 118a0-118df "
    "1e900-1e943")
_DEEPSEEK_PUNCTUATION = _ranges("21-2f 3a-7e ff01-ff0f ff1a-ff5e 2018-201f 3000-3002")
_AFMOE_SCRIPTS = _ranges(
    "4e00-9fff 3400-4dbf 8c48-faff 3040-309f 30a0-30ff ff65-ff9f 2f00-2fdf e40-e7f e80-eff 1780-17ff 1000-109f "
    "aa60-aa7f a9e0-a9ff ac00-d7af 1100-11ff")
_YOUTU_SCRIPTS = _exact("|".join(f"[{_ranges(part)}]+" for part in (
    "ac00-d7a3 3131-318e", "ff01 2026 201c 201d 2018 2019 2014 ff1a ff1b ff0c 3001-303f fe30-fe4f", "3105-312f",
    "4e00-9fa5 3040-309f 30a0-30ff")))
_BLOOM = _exact(rf" ?[^(\s|.,!?{_ranges('2026 3002 ff0c 3001 964 6d4 60c')})]+")

_DEFAULT = PreTokenizer((_by_class(r"[\p{P}$+<=>^~|]+"), _GPT2, _by_class(r"[\p{N}]+"), _THREE_DIGITS))

GEMMA4 = PreTokenizer((_NEWLINES,), byte_level=False, whole_newlines=True, forced_bos=True)

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = MappingProxyType({
    **dict.fromkeys(("", "default"), _DEFAULT),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
                     "jina-v5-nano"), PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)),
    **dict.fromkeys(("dbrx", "smaug-bpe"), PreTokenizer((_LLAMA3,))),
    "chatglm-bpe": PreTokenizer((_LLAMA3,), bos_by_default=False),
    **dict.fromkeys(("glm4", "glm5"), PreTokenizer((_LLAMA3,), bos_by_default=False, ignore_merges=True)),
    "jais-2": PreTokenizer((_function("jais2"),)),
    "deepseek-llm": PreTokenizer(
        (_exact(r"[\r\n]"), _exact(rf"\s?[{_DEEPSEEK_LETTERS}]+"), _exact(rf"\s?[{_DEEPSEEK_PUNCTUATION}]+"),
         _function("trailing_space"), _DEEPSEEK_CJK, _by_class(r"[\p{N}]+"))),
    "deepseek-coder": PreTokenizer(
        (_exact(r"[\r\n]"), _by_class(r"\s?[\p{L}]+"), _by_class(r"\s?[\p{P}]+"), _DEEPSEEK_CJK, _EACH_DIGIT)),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), _DEEPSEEK3),
    "spark2_5": PreTokenizer((_DIGITS_BY_3, _CJK_KANA, _SPARK_TAIL, _EACH_DIGIT)),
    "youtu": PreTokenizer((_YOUTU_SCRIPTS, _YOUTU), ignore_merges=True),
    "falcon": PreTokenizer((_by_class(r"[\p{P}$+<=>^~|`]+"), _GPT2, _THREE_DIGITS)),
    **dict.fromkeys(("starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2", "command-r", "smollm"),
                    PreTokenizer((_EACH_DIGIT, _GPT2))),
    **dict.fromkeys(("gpt-2", "phi-2", "jina-es", "jina-de", "gigachat", "jina-v2-es", "jina-v2-de", "a.x-4.0",
                     "mellum", "modern-bert", "jina-v1-en", "jina-v2-code", "roberta-bpe", "mpt", "olmo", "jais",
                     "exaone4", "trillion", "granite-docling"), PreTokenizer((_GPT2,))),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "hunyuan", "solar-open", "grok-2", "stablelm2",
                     "megrez"), PreTokenizer((_QWEN2,))),
    "qwen35": PreTokenizer((_QWEN35,)),
    "exaone-moe": PreTokenizer((_EXAONE_MOE,)),
    **dict.fromkeys(("bloom", "gpt3-finnish", "poro-chat"), PreTokenizer((_BLOOM,))),
    "viking": PreTokenizer((_BLOOM, _EACH_DIGIT)),
    "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True),
    "chameleon": PreTokenizer(
        (_exact("<sentinel:[0-9]+>"), _exact("IMGIMG[A-I]{1,4}Z"), _exact(r"[\t\n]|    |  "), _EACH_DIGIT,
         _by_class(r"[\p{P}!-/:-@\[-`{-~]"), _GPT2), add_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), PreTokenizer((_GPT4O,))),
    "granite-embed-multi-97m": PreTokenizer((_GRANITE,), ignore_merges=True),
    **dict.fromkeys(("tiny_aya", "cohere2moe"), PreTokenizer((_function("digits_from_right"), _TINY_AYA))),
    "superbpe": PreTokenizer((_by_class(r"[\p{N}]+"), _function("ascii_digits_from_right"))),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), PreTokenizer((_BAILING,))),
    "seed-coder": PreTokenizer((_llama3(r"[\p{N}]", signs=r" ?[^\s\p{L}\p{N}\r\n]+"),)),
    "kimi-k2": PreTokenizer((_KIMI,)),
    "ufakzeka": PreTokenizer((_by_class(_WORD, r"[\p{N}]", _SIGNS + r"[\r\n]*", _LINES, _SPACES),)),
    "afmoe": PreTokenizer((_function("digits_from_right"), _exact(f"[{_AFMOE_SCRIPTS}]+"), _DEEPSEEK3_TAIL)),
    "laguna": PreTokenizer((_NEWLINES, _QWEN2)),
    "minicpm5": PreTokenizer((_DIGITS_BY_3, _llama3(r"[\p{N}]+")), ignore_merges=True),
    **dict.fromkeys(("gemma4", "granite-embed-multi-311m"), GEMMA4),
    "sarvam-moe": PreTokenizer((_NEWLINES,), byte_level=False),
})
