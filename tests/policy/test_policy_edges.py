"""The edges of what a policy value may be: the last value that is allowed, the first that is not, and the advice."""

from __future__ import annotations

import math
from typing import Annotated, Any

import jsonschema
import pytest

from appliance.codec.canonical import canonical
from appliance.policy.explaining.checking import check
from appliance.policy.explaining.fixes import better, closest
from appliance.policy.language.json_schema import of_kind
from appliance.policy.schema.base import Block, fields
from appliance.policy.schema.identifiers import (
    ADVISORY,
    API_VERSION,
    DEVICE,
    DNS_NAME,
    FIELD,
    NAME,
    RESOURCE,
    VARIABLE,
    FreeText,
    Hash,
    HttpsUrl,
    IpAddress,
    Path,
    TaggedHex,
)
from appliance.policy.schema.kinds import Duration, Kind, Mismatch, Number, Pick, SetOf, Size, Switch, Whole, shown
from appliance.policy.schema.patterns import BoundedRegex, bounds
from tests.support.policies import marked, with_lines

URL = "https://a.example/"
PATH, ABSOLUTE = Path(), Path(absolute=True)
LABEL = "a" * 63

EDGES: list[tuple[Kind, list[Any], list[Any]]] = [  # kind, allowed, refused
    (Whole(3, 9), [3, 9], [2, 10, 3.0, "3", True, None]),
    (Whole(0), [0, 2**53 - 1], [-1, 2**53]),
    (Number(-0.5, 2), [-0.5, 2, 2.0, 0], [-0.51, 2.01, "1", True, math.inf, -math.inf, math.nan]),
    (Switch(), [True, False], [0, 1, "true"]),
    (FreeText(2, 4), ["ab", "abcd"], ["a", "abcde", 12]),
    (Pick(("auto", True, False)), ["auto", True, False], ["Auto", 1, 0, "true", None]),
    (Pick((0, 1)), [0, 1], [True, False, "0", 2]),
    (SetOf(Whole(0, 9), 1, 3), [[1], [1, 2, 3]], [[], [1, 2, 3, 4], [1, 1], 1, "1"]),
    (Size("2KiB", "1MiB"), ["2KiB", "2 KiB", "2048B", "1MiB", "1024KiB"],
     ["2047B", "1048577B", "2kib", "2KB", "2", "2  KiB", "KiB", "-2KiB", "0x10B", 2048, "1234567890123456B"]),
    (Duration("10ms", "2d"), ["10ms", "48h", "2d", "1m"], ["9ms", "49h", "3d", "1M", "1us", 10]),
    (HttpsUrl(), [URL, URL + "a" * (2048 - len(URL)), "https://127.0.0.1:65535/x"],
     [URL + "a" * (2049 - len(URL)), URL + " ", URL + "é", "https://", "https:///x", "http://a.example/",
      "ftp://a.example/", "https://u@a.example/", URL + "?q", URL + "#f", ""]),
    (PATH, ["a", "a" * 255, "a/b.c/..d", "é" * 127],
     ["", "a" * 256, "/a", "a//b", "a/", ".", "..", "./a", "a/../b", "a\\b", "a\nb", "a\x00b"]),
    (ABSOLUTE, ["/a", "/" + "a" * 254, "/a/b"], ["/", "a", "/" + "a" * 255, "/a/../b", "//a", "/a/"]),
    (IpAddress(), ["127.0.0.1", "::1"], ["localhost", "127.0.0.1:80", "[::1]", "127.1", "", 1]),
    (Hash(256), ["ab" * 32, "0" * 63 + "1"], ["ab" * 31, "ab" * 33, "AB" * 32, "a" * 64, "ag" * 32, ""]),
    (Hash(384), ["ab" * 48], ["ab" * 32, "0" * 96]),
    (TaggedHex("sha384", 48), ["sha384:" + "ab" * 48], ["sha384:" + "ab" * 47, "sha256:" + "ab" * 48, "ab" * 48]),
    (NAME, ["a", "Z", "0", "a" * 64, "a.b-c_d"], ["", "a" * 65, "-a", ".a", "_a", "a b", "a/b", "é", "a\n"]),
    (VARIABLE, ["A", "_a", "A" * 64, "A9"], ["", "9A", "A-B", "A" * 65]),
    (DEVICE, ["/dev/vdb", "/dev/mapper/x-1"], ["/dev/", "vdb", "/dev/../vdb", "/dev/Vdb", "/dev/" + "a" * 65]),
    (RESOURCE, ["a", "/".join("abcdefgh"), "a" * 64], ["", "/".join("abcdefghi"), "a/", "/a", "a" * 65, "a//b"]),
    (DNS_NAME, ["a", "a.example", LABEL, f"{LABEL}.{LABEL}.{LABEL}.{LABEL[:61]}"],
     ["", "A.example", "a..b", "-a", "a-", "a.", LABEL + "a", f"{LABEL}.{LABEL}.{LABEL}.{LABEL[:62]}", "a_b"]),
    (ADVISORY, ["INTEL-SA-00837"], ["INTEL-SA-837", "INTEL-SA-008370", "intel-sa-00837"]),
    (API_VERSION, ["1.55", "0.0", "99.999"], ["1", "1.", "100.1", "1.1000", "1.5.5"]),
    (FIELD, ["a", ".".join("abcdefgh"), "_a9"], ["", ".".join("abcdefghi"), "a.", ".a", "9", "a-b"]),
    (BoundedRegex(), ["a", "a" * 1024, "a{4096}"], ["", "a" * 1025, "a{4097}"]),
]
# beyond what a JSON Schema of one field says: it may accept these, the checker refuses them
CHECKER_ALONE = (Size, Duration, HttpsUrl, Path, IpAddress, BoundedRegex, Hash)


@pytest.mark.parametrize(("kind", "allowed", "refused"), EDGES, ids=lambda value: type(value).__name__)
def test_a_kind_ends_where_it_says(kind: Kind, allowed: list[Any], refused: list[Any]) -> None:
    """Each value on the edge is parsed, and each one beside it refused, with something to write instead."""
    for value in allowed:
        kind.parse(value)
    for value in refused:
        with pytest.raises(Mismatch) as caught:
            kind.parse(value)
        assert caught.value.found
        assert caught.value.fix


@pytest.mark.parametrize(("kind", "allowed", "refused"), EDGES, ids=lambda value: type(value).__name__)
def test_a_schema_ends_where_its_kind_does(kind: Kind, allowed: list[Any], refused: list[Any]) -> None:
    """The JSON Schema of a kind accepts all that the kind does, and refuses what a schema can express."""
    validator = jsonschema.Draft202012Validator(of_kind(kind))
    assert [] == [value for value in allowed if not validator.is_valid(value)]
    if isinstance(kind, CHECKER_ALONE):
        return
    inexact = {3.0, "a\n"}  # a float without a fraction is an integer to JSON, and $ allows a line's end to Python
    accepted = [value for value in refused if validator.is_valid(value)
                and not (isinstance(value, float | str) and value in inexact)
                and not (isinstance(value, float) and math.isnan(value))]
    assert [] == accepted


@pytest.mark.parametrize(("kind", "text", "amount"), [
    (Size("0B", "1024TiB"), "3B", 3), (Size("0B", "1024TiB"), "3KiB", 3 * 1024),
    (Size("0B", "1024TiB"), "3MiB", 3 * 1024**2), (Size("0B", "1024TiB"), "3GiB", 3 * 1024**3),
    (Size("0B", "1024TiB"), "3TiB", 3 * 1024**4), (Duration("0ms", "99d"), "3ms", 3),
    (Duration("0ms", "99d"), "3s", 3000), (Duration("0ms", "99d"), "3m", 180_000),
    (Duration("0ms", "99d"), "3h", 10_800_000), (Duration("0ms", "99d"), "3d", 259_200_000)])
def test_a_unit_is_worth_what_it_says(kind: Kind, text: str, amount: int) -> None:
    """Sizes count in powers of 1024 bytes, durations in milliseconds."""
    assert amount == kind.parse(text)


@pytest.mark.parametrize(("kind", "text", "advice"), [
    (Size("0B", "9TiB"), "5k", '"5KiB"'), (Size("0B", "9TiB"), "5mb", '"5MiB"'), (Size("0B", "9TiB"), "5gib", '"5GiB"'),
    (Size("0B", "9TiB"), "5T", '"5TiB"'), (Size("0B", "9TiB"), "5bytes", '"5B"'), (Size("0B", "9TiB"), "5b", '"5B"'),
    (Size("0B", "9TiB"), "5byte", '"5B"'),
    (Duration("0ms", "9d"), "5msec", '"5ms"'), (Duration("0ms", "9d"), "5S", '"5s"'),
    (Duration("0ms", "9d"), "5min", '"5m"'), (Duration("0ms", "9d"), "5hours", None),
    (Duration("0ms", "9d"), "5hour", '"5h"'), (Duration("0ms", "9d"), "5days", '"5d"'),
    (Switch(), "true", "write true without quotes"), (Switch(), " false ", "write false without quotes"),
    (Switch(), "yes", "write true or false"), (Whole(0, 9), "7", "write 7 without quotes"),
    (Whole(0, 9), "7x", "write 1"), (Whole(5, 9), "x", "write 5"), (Whole(5, 9), 1, "allowed number is 5"),
    (Whole(0, 9), 7.0, "write 7"), (Number(0.5, 9), "0.7", "write 0.7 without quotes"),
    (Number(0.5, 9), "x", "write 0.5"), (Number(0.5, 9), True, "write 0.5"), (Whole(5, 9), 10, "allowed number is 9"),
    (Number(0.5, 9), 0.1, "allowed number is 0.5"),
    (Number(0.5, 9), 9.5, "allowed number is 9"), (Size("2B", "9B"), "1B", '"2B"'), (Size("2B", "9B"), "10B", '"9B"'),
    (Size("2B", "9B"), 5, "in quotes, with a unit"), (Size("2B", "9B"), True, 'write "512MiB"'),
    (Duration("1ms", "9d"), 5, '"250ms"'), (Pick(("f16", "q8")), "F16", 'did you mean "f16"?'),
    (Pick(("f16", "q8")), "zzzzzz", 'write "f16" or "q8"'), (Pick((True, "auto")), "true", "write true without"),
    (Pick((True, "auto")), "false", 'write true or "auto"'), (SetOf(Switch(), 1, 2), [], "add what is missing"),
    (SetOf(Switch(), 1, 2), [True, False, True], "remove some"),
    (SetOf(Switch()), [True, True], "leave one of them out"),
    (PATH, "/x/model.gguf", 'write only "model.gguf"'), (PATH, "", '"model.gguf"'), (ABSOLUTE, "", '"/run/'),
    (ABSOLUTE, "key", "write the whole path"), (HttpsUrl(), "http://a.example/x", '"https://a.example/x"'),
    (HttpsUrl(), "https://a.example/x?y#z", '"https://a.example/x"'), (IpAddress(), "localhost", 'write "127.0.0.1"'),
    (IpAddress(), "a.example", '"::1"'), (Hash(256), "AB" * 32, f'"{"ab" * 32}"'),
    (Hash(256), "x", "64 digits of `sha256sum FILE`"), (Hash(384), 1, "96 hexadecimal digits"),
])
def test_a_refusal_says_what_to_write(kind: Kind, text: Any, advice: str | None) -> None:
    """The advice fits the mistake: the unit that was meant, the nearest number, the literal without its quotes."""
    with pytest.raises(Mismatch) as caught:
        kind.parse(text)
    assert (advice or "") in str(better(caught.value, kind, text).fix)


@pytest.mark.parametrize(("kind", "text", "secret"), [
    (Hash(256), "sk-abcdef", True), (Hash(256), "nothing like a hash", False), (Hash(256), "ab", False),
    (Hash(256, of="key"), "nothing like a hash", True), (Hash(256, of="key"), "ab", False),
    (TaggedHex("ed25519", 32), "-----BEGIN PRIVATE KEY-----", True), (TaggedHex("ed25519", 32), "ed25519:ab", False),
    (NAME, "ghp_0123456789 abc", True), (NAME, "a b", False), (NAME, " eyJhbGciOiJFZERTQSJ9", True),
    (HttpsUrl(), "https://user:password@a.example/", True), (HttpsUrl(), "http://a.example/", False),
    (TaggedHex("ed25519", 32), "hvs.CAESIJ", True), (TaggedHex("ed25519", 32), "age-secret-key-1", True)])
def test_what_looks_like_a_secret_is_never_shown(kind: Kind, text: str, secret: bool) -> None:
    """A pasted key, token or password is refused as one, and no word of it comes back."""
    with pytest.raises(Mismatch) as caught:
        kind.parse(text)
    assert secret == caught.value.secret
    if secret:
        assert not {word for word in (text, "password", "CAESIJ", "0123456789", "abcdef")
                    if word in f"{caught.value.found} {caught.value.fix}".replace("a user or password", "")}


def test_a_number_has_no_negative_zero() -> None:
    """-0.0 is parsed to 0.0, whose canonical text is 0."""
    parsed = Number(-1, 1).parse(-0.0)
    assert 1.0 == math.copysign(1, parsed)
    assert isinstance(Number(0, 9).parse(3), float)


@pytest.mark.parametrize(("value", "text"), [
    (2**53 - 1, b"9007199254740991"), (-(2**53) + 1, b"-9007199254740991"), (1e21, b"1e+21"),
    (1e20, b"100000000000000000000"), (123456789012345680000.0, b"123456789012345680000"), (1e-6, b"0.000001"),
    (1e-7, b"1e-7"), (1.5e-7, b"1.5e-7"), (0.1, b"0.1"), (-0.0, b"0"), (-1.5, b"-1.5"), (10.0, b"10"),
    ([], b"[]"), ({}, b"{}"), ((1, [2]), b"[1,[2]]"), ("\x7f\x1f/", b'"\x7f\\u001f/"')])
def test_canonical_texts_on_the_edge(value: Any, text: bytes) -> None:
    """Numbers change their layout where ECMAScript's Number::toString does, and 53 bits are the last integer."""
    assert text == canonical(value)


@pytest.mark.parametrize("value", [2**53, -(2**53), math.inf, -math.inf, math.nan, "\ud800", {1: 2}, {"\udfff": 1},
                                   b"x", bytearray(b"x"), {1}, object()])
def test_values_without_a_canonical_text(value: Any) -> None:
    """What JSON cannot carry exactly has no canonical form, at any depth."""
    for outer in (value, [value], {"a": value}):
        with pytest.raises(ValueError, match="no canonical form"):
            canonical(outer)


@pytest.mark.parametrize(("value", "text"), [
    (True, "true"), (False, "false"), ("a" * 60, '"' + "a" * 60 + '"'), ("a" * 61, '"' + "a" * 57 + '..."'),
    ("\x1b[0m", '"\\u001b[0m"'), ([1], "a list"), ((), "a list"), ({"a": 1}, "an object"), (1.5, "1.5")])
def test_a_value_is_shown_short_and_harmless(value: Any, text: str) -> None:
    """Messages cut long strings after 60 characters and escape what a terminal would act on."""
    assert text == shown(value)


def test_the_closest_word_is_near() -> None:
    """A typing mistake finds its word whatever its case; a different word finds none."""
    assert "prompt_tokens" == closest("PROMPT_TOKEN", ["limits", "prompt_tokens"])
    assert None is closest("zebra", ["limits", "prompt_tokens"])


@pytest.mark.parametrize(("regex", "accepted"), [
    ("(" * 64 + "a" + ")" * 64, True), ("(" * 65 + "a" + ")" * 65, False),
    ("(?i)a", True), ("(?a)a", True), ("(?m)a", True), ("(?s)a", True), ("(?x)a", False),
    ("(?:a{64}){64}", True), ("(?:a{64}){65}", False), ("(?:a?){1}b", True), ("(?:a?){2}b", False),
    # what follows a repeat may begin with none of its characters, in either case, or the costs multiply
    ("a{1,2000}b{1,2000}c", True), ("a{1,2000}[ab]{1,2000}c", False), ("a{1,2000}A{1,2000}c", False),
    (r"\d{1,2000}[a-h]{1,2000}!", True), (r"\d{1,2000}[i-l]{1,2000}!", False),
    (r"\w{1,2000}[a-z]{1,2000}!", False), (r"\s{1,2000}\S{1,2000}!", False),
    (r"\D{1,2000}[a-z]{1,2000}!", False), (r"\D{1,2000}[0-9]{1,2000}!", True), ("[^ab]{1,2000}a{1,2000}!", False),
    ("[^a]{1,2000}a{1,2000}!", False),
    ("[^01]{1,2000}[01]{1,2000}!", True), ("[^0-2]{1,2000}3{1,2000}!", False),
    (".{1,2000}a{1,2000}b", False), ("k{1,2000}\u212a{1,2000}!", False),
    ("é{1,2000}ü{1,2000}!", False), ("a{1,2000}(?:b|c){1,2000}!", True), ("a{1,2000}(?:b|ab){1,1000}!", False),
    ("a{1,2000}b?a{1,2000}!", False), (r"a{1,2000}\ba{1,2000}!", False),
])
def test_patterns_on_the_edge(regex: str, accepted: bool) -> None:
    """A pattern is accepted exactly where its cost stays bounded: see the characters of neighbouring repeats."""
    if accepted:
        bounds(regex)
        return
    with pytest.raises(Mismatch):
        bounds(regex)


PUBLIC = "ed25519:2385055e832db340b0abcbe0e37ebfd7cbfa4b19e92dd5dd8d2afbe1a29d142c"
FINDINGS = [  # block, lines with « where the one finding stands, words of its summary, words of its fix
    *(("privacy", f'redaction {{ fields = «["{name}"] }}', f'"{name}" cannot be dropped', "leave it out")
      for name in ("messages", "prompt", "model", "stream", "max_tokens")),
    ("limits", '«"prompt_tokens" = 5', "stands without quotes", "write prompt_tokens = ..."),
    ("limits", "prompt_tokens «: 5", "a colon stands where = should", "write prompt_tokens = ..."),
    ("limits", "«prompt_tokens 5", "neither an attribute nor a block", "write prompt_tokens = ..."),
    ("limits", "«prompt_tokens [5]", "neither an attribute nor a block", "write prompt_tokens = ..."),
    ("limits", 'request_size = «"much"', "not a size", '"512MiB"'),
    ("limits", 'first_token_timeout = «"long"', "not a duration", '"250ms"'),
    ("", 'model "a" «"b" {\n file = "a"\n sha256 = "' + "01" * 32 + '"\n}', "has 2 labels", 'model "name"'),
    ("tee", "evidence { tpm { pcrs = [0, 5, «24] } }", "outside of what is allowed", "allowed number is 23"),
    ("limits", "prompt_tokens = «1 == 2", "", "value itself"),
    ("tenants", 'list = «"x.json"', "list stands without authority", "add authority"),
]


@pytest.mark.parametrize(("block", "lines", "summary", "fix"), FINDINGS)
def test_one_mistake_is_one_finding(block: str, lines: str, summary: str, fix: str) -> None:
    """A mistake is told once, at its place, with its own advice; nothing follows from it."""
    text, place = marked(with_lines(block, lines))
    errors = [found for found in check(text).diagnostics if found.severity == "error"]
    assert [place] == [(found.line, found.column) for found in errors], "\n".join(map(str, errors))
    assert summary in errors[0].summary
    assert fix in errors[0].fix


def test_a_quoted_name_before_a_colon_is_read_as_json_is() -> None:
    """A line of JSON is told what is wrong with it, the quotes and the colon, and its value is not lost."""
    errors = check(with_lines("limits", '"prompt_tokens": 0')).diagnostics
    assert ["stands without quotes", "a colon stands where", "outside of what is allowed"] == [
        next(words for words in ("stands without quotes", "a colon stands where", "outside of what is allowed")
             if words in found.summary) for found in errors]


def test_the_marker_covers_what_is_meant_and_never_less_than_one_character() -> None:
    """The marker below an excerpt is as long as the value; for the end of a line it is one character."""
    found = check(with_lines("limits", 'request_size = "1MB"')).diagnostics[0]
    assert ('  request_size = "1MB"'.strip(), " " * 15 + "^" * 5) == (found.source, found.marker)
    for text in ("limits {", "limits {\n  x =\n}\n", "x"):
        markers = [each.marker.strip() for each in check(text).diagnostics]
        assert [] == [marker for marker in markers if set(marker) != {"^"}]


def test_a_finding_names_its_path_as_a_person_reads_it() -> None:
    """Labels stand in quotes behind their block, positions in brackets behind their list."""
    for block, lines, path in (
            ("tee", "evidence { tpm { pcrs = [1, 24] } }", "tee.evidence.tpm.pcrs[1]"),
            ("model", "sampling { top_k { max = -1 } }", 'model "demo".sampling.top_k.max'),
            ("service", 'operator_may_set = ["log_sink", "x"]', "service.operator_may_set[1]")):
        assert [path] == [found.path for found in check(with_lines(block, lines)).diagnostics]


def test_a_block_knows_each_of_its_fields() -> None:
    """A field of the schema without a kind, so without limits, is refused when the schema is read."""
    class Bare(Block):
        name: int

    class Good(Block):
        one: Annotated[int, Whole(1, 2)] = 1
        many: tuple[Bare, ...] = ()
        perhaps: Bare | None = None

    with pytest.raises(TypeError, match=r"Bare\.name must have either"):
        fields(Bare)
    assert [("one", None, False, False), ("many", Bare, True, False), ("perhaps", Bare, False, True)] == [
        (shape.name, shape.block, shape.labelled, shape.optional) for shape in fields(Good)]
