"""Bodies that are not the JSON object of a request: what is wrong is said, and where."""

from __future__ import annotations

import gzip
import time

import pytest

from appliance.api import document
from appliance.api.problems import RequestError
from appliance.api.wire import ChatRequest, CompletionRequest, parse
from tests.fuzz import driver, wire_fuzz
from tests.support import pace

LONG = "9" * 5000
FAULTS: list[tuple[bytes, str]] = [
    (b"", "the body is empty; a JSON object is required"),
    (b" \r\n\t", "the body is empty; a JSON object is required"),
    (b"\xef\xbb\xbf{}", "the body begins with a byte order mark (EF BB BF)"),
    ('{"a":1}'.encode("utf-16"), "the body is in UTF-16 or UTF-32; send it in UTF-8"),
    ('{"a":1}'.encode("utf-16-be"), "the body is in UTF-16 or UTF-32; send it in UTF-8"),
    ('{"a":1}'.encode("utf-32-le"), "the body is in UTF-16 or UTF-32; send it in UTF-8"),
    (gzip.compress(b"{}"), "the body is compressed (gzip); send it as plain JSON"),
    (b'{"a":"\xe9"}', "the body is not in UTF-8: the byte 0xE9 does not belong, at line 1, column 7 (byte 6)"),
    ('{"ä":1,\n"b":"'.encode() + b'\xff"}', "the byte 0xFF does not belong, at line 2, column 6 (byte 14)"),
    (b'{"a":"\xe2\x82', "the body is cut off inside a character, at line 1, column 7 (byte 6)"),
    (b'{"a":"\xed\xa0\x80"}', "a text has a lone surrogate, half of a character, at line 1, column 7 (byte 6)"),
    (b'{"a":"\\ud800"}', "a text has a lone surrogate, half of a character, at line 1, column 7 (byte 6)"),
    (b'{"a":"\\uDC00"}', "a text has a lone surrogate, half of a character, at line 1, column 7 (byte 6)"),
    ('{"ä":"\\ud83d\\ude00 \\\\ud800 \\n\\ud83dx"}'.encode(), "lone surrogate, half of a character, at line 1, "
                                                              "column 30 (byte 30)"),
    (b'{"a":"\\ud800\\ud83d\\ude00"}', "lone surrogate, half of a character, at line 1, column 7 (byte 6)"),
    (b'{"a\\udfff":1}', "lone surrogate, half of a character, at line 1, column 4 (byte 3)"),
    (b"{", "the body is cut off: it ends before its object does, at line 1, column 2 (byte 1)"),
    (b'{"a":[1,', "the body is cut off: it ends before its object does, at line 1, column 9 (byte 8)"),
    (b'{"a":1', "the body is cut off: it ends before its object does, at line 1, column 7 (byte 6)"),
    (b'{"a":tru', "the body is cut off: it ends before its object does, at line 1, column 6 (byte 5)"),
    (b'{\n "a', "the body is cut off: a text does not end that begins, at line 2, column 2 (byte 3)"),
    (b'{"a":"x', "the body is cut off: a text does not end that begins, at line 1, column 6 (byte 5)"),
    (b'{"a":1,}', "a comma stands before a closing bracket, at line 1, column 8 (byte 7)"),
    (b'{"a":[1,\n ]}', "a comma stands before a closing bracket, at line 2, column 2 (byte 10)"),
    (b'{"a":1 "b":2}', "a comma or a closing bracket is expected, at line 1, column 8 (byte 7)"),
    (b'{"a" 1}', "a colon is expected, at line 1, column 6 (byte 5)"),
    (b"{a:1}", "a key in double quotes is expected, at line 1, column 2 (byte 1)"),
    (b"{'a':1}", "a text is in single quotes; JSON has double quotes, at line 1, column 2 (byte 1)"),
    (b'{"a":True}', "True is not JSON; write true, at line 1, column 6 (byte 5)"),
    (b'{"a":None}', "None is not JSON; write null, at line 1, column 6 (byte 5)"),
    (b'{"a":"\n"}', "a text has the control character U+000A, which must be escaped, at line 1, column 7 (byte 6)"),
    (b'{"a":"\\x41"}', "a backslash in a text begins no escape of JSON, at line 1, column 7 (byte 6)"),
    (b'{"a":1}{}', "text follows the end of the JSON value, at line 1, column 8 (byte 7)"),
    (b'{"a":1} // x', "text follows the end of the JSON value, at line 1, column 9 (byte 8)"),
    (b'// x\n{"a":1}', "JSON has no comments, at line 1, column 1 (byte 0)"),
    (b"model=m", "a value is expected, at line 1, column 1 (byte 0)"),
    (b'{"a":NaN}', "JSON has no NaN and no infinities, at line 1, column 6 (byte 5)"),
    (b'{"a":"NaN","b":[-1,-Infinity]}', "JSON has no NaN and no infinities, at line 1, column 20 (byte 19)"),
    (b'{"model":"a","model":"b"}', 'the key "model" stands twice in one object, at line 1, column 14 (byte 13)'),
    (b'{"m":[{"b":{"a":1},"a":"a","\\u0061":2}]}', 'the key "a" stands twice in one object, at line 1, column 28'),
    (b'{"a":{"a":{}, "b":1},\n "b":1, "b":2}', 'the key "b" stands twice in one object, at line 2, column 9 (byte 30)'),
    (f'{{"a":"{LONG}","b":1.{LONG},"c":1e{LONG[:3]},"d":-{LONG}}}'.encode(),
     "a number has more than 4300 digits, at line 1, column 10031 (byte 10030)"),
    (b'{"a":' * 100_000, "the body is nested too deeply: level 256 begins, at line 1, column 1276 (byte 1275)"),
    (b"[" * 100_000, "the body is nested too deeply: level 256 begins, at line 1, column 256 (byte 255)"),
    (b"[]", "the body is not a JSON object; found: a list"), (b"7", "the body is not a JSON object; found: a number"),
    (b"null", "the body is not a JSON object; found: null"), (b'"x"', "the body is not a JSON object; found: a text"),
]


@pytest.mark.parametrize(("body", "words"), FAULTS, ids=range(len(FAULTS)))
def test_says_what_is_wrong_and_where(body: bytes, words: str) -> None:
    """Each fault has its own words, and the place as line, column and byte."""
    for kind in (ChatRequest, CompletionRequest):
        with pytest.raises(RequestError) as caught:
            parse(body, kind)
        assert ("malformed_json", 400) == (caught.value.code, caught.value.status)
        assert words in caught.value.summary


@pytest.mark.parametrize("text", ["\\ud83d\\ude00", "\\\\ud800", "\\uD83D\\uDE00 \\u00e4 \\n\\\"", "\\\\\\\\udc00"])
def test_whole_characters_are_taken(text: str) -> None:
    """Pairs of surrogates are characters, and a backslash that is escaped begins no escape."""
    assert ["a"] == list(document.read(f'{{"a":"{text}"}}'.encode()))


def test_every_cut_of_a_body_is_told() -> None:
    """Wherever a body is cut, the refusal says that it was, and where it ends or which text does
    not."""
    body = '{"model":"m","messages":[{"role":"user","content":"é \\u00e9 \\n x"}],"n":1,"a":true,"b":-0.5,"c":null}'
    data = body.encode()
    for size in range(1, len(data)):
        with pytest.raises(RequestError, match="cut off"):
            document.read(data[:size])


@pytest.mark.parametrize("body", [
    b'{"m":"' + b"\\n" * 500_000 + b'\\ud800"}', b'{"m":[' + b'"a",' * 300_000 + b"NaN]}",
    b'{"m":[' + b"[]," * 400_000 + b"[" * 100_000, b'{"m":[' + b'{"a":1},' * 100_000 + b'{"a":1,"a":1}]}',
    b'{"m":[' + b"1.5," * 300_000 + b"9" * 5000 + b"]}"])
def test_a_place_costs_no_more_than_reading(body: bytes) -> None:
    """The search for a place takes time in proportion to a body: a megabyte of the worst takes
    moments, not minutes."""
    began = time.process_time()
    with pytest.raises(RequestError):
        document.read(body)
    assert pace.within(time.process_time() - began, 20)


def test_no_text_of_a_body_is_in_a_refusal() -> None:
    """What stands around a fault is told by its place alone."""
    for body in (b'{"a":CANARY}', b'{"a":"CANARY', b'{CANARY:1}', b'{"a":"CANARY\\ud800"}', b'{"a":1}CANARY',
                 b'CANARY', b'{"a":"CANARY\xff"}'):
        with pytest.raises(RequestError) as caught:
            document.read(body)
        assert b"CANARY" not in caught.value.body()


def test_reading_survives_mutations() -> None:
    """Three seconds of mutated bodies give requests, or refusals whose place is inside of the
    body."""
    for seed in wire_fuzz.seeds():
        wire_fuzz.fuzz(seed)
    count, finding = driver.run(wire_fuzz.fuzz, wire_fuzz.seeds(), seconds=3, seed=1, least=101)
    assert None is finding
    assert 100 < count
