"""Where requests begin and end: what two readers could take for two requests is refused, however it is cut."""

from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.api.problems import RequestError
from appliance.http import framing
from appliance.http.framing import Framing
from tests.support.raw import chunked

TOP = b"POST / HTTP/1.1\r\nHost: x\r\n"
CHUNKED = TOP + b"Transfer-Encoding: chunked\r\n\r\n"

BAD_HEADS = [
    b"Content-Length: 5\r\nTransfer-Encoding: chunked", b"Transfer-Encoding: chunked\r\nContent-Length: 5",
    b"Content-Length: 5\r\nContent-Length: 6", b"Content-Length: 5, 6", b"Content-Length: 5,", b"Content-Length:",
    *(b"Content-Length: " + length for length in (
        b"+5", b"-5", b"5 5", b"0x5", b"5.0", b"5e0", b"1_0", b"\xb25", b"9" * 19, b"9" * 5000, b"'5'", b"5;a", b"x")),
    *(b"Transfer-Encoding: " + coding for coding in (
        b"xchunked", b"chunked, identity", b"gzip, chunked", b"identity", b"chunked, chunked", b"chunked;a=b", b"",
        b'"chunked"', b"chunked\x0b", b"chunked,", b"chunk ed", b"\x0bchunked", b"cow", b"gzip")),
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", b"Transfer-Encoding: x\r\nTransfer-Encoding: chunked",
    b"Transfer-Encoding : chunked", b"Transfer-Encoding\t: chunked", b" Transfer-Encoding: chunked",
    b"X: y\r\n Transfer-Encoding: chunked", b"X: y\r\n\tfolded", b"Transfer-Encoding:\r\n chunked", b"no colon", b": x",
    b"X\x00: y", b"X: y\x00", b"X: \x01", b"X: \x7f", b"X: y\nTransfer-Encoding: chunked", b"X: y\rZ: z", b"X: y\r\r",
    b"X: y\n", b"X(: y", b"\xff: y", b"X: y\r\n\nGET / HTTP/1.1",
]
BAD_LINES = [
    b"POST /  HTTP/1.1", b"POST\t/ HTTP/1.1", b"POST / HTTP/2.0", b"POST / HTTP/0.9", b"POST /", b"POST / http/1.1",
    b"POST / HTTP/1.1 ", b" POST / HTTP/1.1", b"POST / HTTP/1.10", b"POST /\x00 HTTP/1.1", b"POST / HTTP/1.1\r",
    b"\x16\x03\x01\x02\x00", b"PO(ST / HTTP/1.1", b"POST /\xe4 HTTP/1.1", b"\n", b"\r\n\r\nPOST / HTTP/1.1",
    b"PRI * HTTP/2.0",
]
BAD_BODIES = [
    b"x\r\n", b"-1\r\n", b"+1\r\na\r\n", b" 1\r\na\r\n", b"1 \r\na\r\n", b"0x1\r\na\r\n", b"\r\n", b"1" * 16 + b"\r\n",
    b"1\na\r\n", b"1\r\na\n",
    b"1\r\nab\r\n", b"1\r\na0\r\n\r\n", b"1\r\na\r0\r\n", b"1;a\nb\r\na\r\n", b"1;a\rb\r\na\r\n", b"1;\r\na\r\n",
    b'1;a="b\r\na\r\n', b"1;a=\r\na\r\n", b"1 a\r\na\r\n", b"1;" + b"a" * 1100 + b"\r\na\r\n", b"1;a=\x00\r\na\r\n",
    b"1_0\r\n", b"\xb2\r\n", b"0\r\nno colon\r\n\r\n", b"0\r\nX : y\r\n\r\n", b"0\r\nX: y\n\r\n", b"0\r\n\n",
    b"0\r\n folded\r\n\r\n",
    b"0\n\n", b"0\r\nX: \x00\r\n\r\n", b"0\r\nX: " + b"y" * 1100 + b"\r\n\r\n",
]


def _taken(data: bytes, step: int, head_bytes: int = 16_384) -> tuple[bytes, Framing]:
    """What passes of bytes that arrive in steps, and the state at the end; the heads of later requests pass as well."""
    came, passed = Framing(head_bytes), bytearray()
    for start in range(0, len(data), step):
        came.feed(data[start:start + step])
        while part := came.take():
            passed += part
    return bytes(passed), came


def _refused(data: bytes) -> None:
    """Fails unless bytes are refused, whole and one by one, for a reason of their own."""
    for step in (len(data), 1):
        came = Framing()
        with pytest.raises(RequestError) as caught:  # noqa: PT012
            for start in range(0, len(data), step):
                came.feed(data[start:start + step])
                while came.take():
                    pass
        assert "malformed_request" == caught.value.code == getattr(came.error, "code", None)
        assert caught.value.summary.startswith("the request is not valid HTTP: ")
        assert came.ends_connection


@pytest.mark.parametrize("lines", BAD_HEADS)
def test_heads_that_readers_disagree_about(lines: bytes) -> None:
    """Each is refused before a body."""
    _refused(TOP + lines + b"\r\n\r\n0\r\n\r\n")


@pytest.mark.parametrize("line", BAD_LINES)
def test_request_lines_that_are_none(line: bytes) -> None:
    """Each is refused; two empty lines before one are, too."""
    _refused(line + b"\r\nHost: x\r\n\r\n")


@pytest.mark.parametrize("body", BAD_BODIES)
def test_chunks_that_readers_disagree_about(body: bytes) -> None:
    """Each is refused, as the first thing of a body and after a chunk."""
    _refused(CHUNKED + body)
    _refused(CHUNKED + b"3\r\nabc\r\n" + body)


def test_chunks_need_http_1_1() -> None:
    """RFC 9112 §6.1: in HTTP/1.0 they are faulty framing, as some reader on the way knows no chunks."""
    _refused(CHUNKED.replace(b"HTTP/1.1", b"HTTP/1.0"))


TWICE = b"content-length:3\r\nContent-Length: 3\r\n\r\n"
SOUND = [  # what arrives, what h11 gets of it
    (TOP + b"\r\n", TOP + b"\r\n"), (b"\r\n" + TOP + b"\r\n", TOP + b"\r\n"),
    (b"GET /a?b HTTP/1.0\r\n\r\n", b"GET /a?b HTTP/1.0\r\n\r\n"),
    (TOP + b"Content-Length: 3\r\n\r\nabc", TOP + b"Content-Length: 3\r\n\r\nabc"),
    (TOP + TWICE + b"abc", TOP + TWICE + b"abc"),
    (TOP + b"Content-Length: 0\r\n\r\n" + TOP + b"\r\n", TOP + b"Content-Length: 0\r\n\r\n" + TOP + b"\r\n"),
    (CHUNKED + b"3\r\nabc\r\n0\r\n\r\n", CHUNKED + b"3\r\nabc\r\n0\r\n\r\n"),
    (TOP + b"transfer-encoding:\tChunked \r\n\r\n0\r\n\r\n", TOP + b"transfer-encoding:\tChunked \r\n\r\n0\r\n\r\n"),
    (CHUNKED + b'3;a=b ; c="d\\"e";f\r\nabc\r\n0;x\r\nX: y\r\nZ:\r\n\r\n', CHUNKED + b"3\r\nabc\r\n0\r\n\r\n"),
    (CHUNKED + b"000\r\n\r\n", CHUNKED + b"0\r\n\r\n"),
]


@pytest.mark.parametrize(("data", "passes"), SOUND)
def test_sound_requests_pass(data: bytes, passes: bytes) -> None:
    """As they are, but for extensions and trailers; in parts of one byte with the same content."""
    whole, came = _taken(data, len(data))
    assert passes == whole
    assert came.between
    assert not came.ends_connection
    assert _plain(passes) == _plain(_taken(data, 1)[0])


def _plain(passed: bytes) -> bytes:
    """What passes, with a body in chunks of one byte each."""
    top, _, rest = passed.partition(b"\r\n\r\n")
    parts = re.findall(rb"[0-9a-f]+\r\n([a-z]+)\r\n", rest) if b"chunked" in top.lower() else [rest]
    return top + b"".join(parts)


@given(st.binary(max_size=300), st.integers(1, 40), st.integers(1, 50))
def test_bodies_in_chunks_pass_however_they_are_cut(body: bytes, size: int, step: int) -> None:
    """The bytes of a body are those that were sent, and the next request begins where it ends."""
    passed, came = _taken(CHUNKED + chunked(body, size) + TOP, step)
    rest, place, found = passed.removeprefix(CHUNKED), 0, b""
    while length := int(rest[place:rest.index(b"\r\n", place)], 16):
        begin = rest.index(b"\r\n", place) + 2
        found, place = found + rest[begin:begin + length], begin + length + 2
    assert (body, b"0\r\n\r\n", TOP) == (found, rest[place:], bytes(came.held))


@pytest.mark.parametrize(("data", "ends"), [
    (TOP + b"Content-Length: 65536\r\n\r\n", False), (TOP + b"Content-Length: 65537\r\n\r\n", True),
    (TOP + b"Content-Length: 65537\r\n\r\na", False), (TOP + b"Expect: 100-continue\r\n\r\n", False),
    (TOP + b"Content-Length: 5\r\nExpect: 100-Continue\r\n\r\n", True),
    (TOP + b"Content-Length: 5\r\nExpect: 100-continue\r\n\r\na", False),
    (CHUNKED, True), (CHUNKED + b"3\r\nabc\r\n", True), (CHUNKED + b"3\r\nabc\r\n0\r\n\r\n", False)])
def test_which_unread_bodies_end_the_connection(data: bytes, ends: bool) -> None:
    """Those that are long, of unknown length, or may never come."""
    assert ends == _taken(data, len(data))[1].ends_connection


def _chunks_taken(size: int, line: bytes, most: int) -> int:
    """How many chunks of some size pass, of `most`."""
    came = Framing()
    came.feed(CHUNKED)
    assert CHUNKED == came.take()
    for number in range(most):
        came.feed(line + b"a" * size + b"\r\n")
        with contextlib.suppress(RequestError):
            came.take()
        if came.error is not None:
            assert "body_too_large" == came.error.code
            return number
    return most


@pytest.mark.parametrize(("size", "line", "passes"), [
    (1, b"1\r\n", True), (1, b"00001\r\n", False), (1, b"1;" + b"a" * 1000 + b"\r\n", False), (64, b"40\r\n", True),
    (16, b"10\r\n", False), (16_384, b"4000\r\n", True)])
def test_what_frames_a_body_is_bounded(size: int, line: bytes, passes: bool) -> None:
    """Ten thousand chunks of any size pass; without end only those of 48 bytes and more, whose framing is a small part
    of them. What a body costs beside its bytes is so bounded by chunks, not by its time."""
    most = (framing.FREE_BYTES // 5 - 1) if size == 1 else 50_000
    assert passes == (most == _chunks_taken(size, line, most))


def test_a_long_head_is_refused() -> None:
    """By its length, whether its end is there or not."""
    for data in (b"GET /" + b"a" * 5000, b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\nHost: x\r\n\r\n"):
        with pytest.raises(RequestError) as caught:
            _taken(data, len(data), 4096)
        assert "headers_too_large" == caught.value.code


@pytest.mark.parametrize("line", [b"1\r\n", b"01\r\n", b"1;a\r\n", b"1;a=\"b\"\r\n"])
@pytest.mark.parametrize("count", [1, framing.PIECES - 1, framing.PIECES, framing.PIECES + 1, 2000])
def test_small_chunks_are_read_in_turns(count: int, line: bytes) -> None:
    """At most so many at once, whatever arrived; the body comes whole, and so does what follows it."""
    came = Framing()
    came.feed(CHUNKED)
    assert CHUNKED == came.take()
    came.feed((line + b"a\r\n") * count + b"0\r\n\r\n" + TOP)
    turns, found, before = -1, b"", len(came.held)
    while not found:
        found = came.take()
        assert before - len(came.held) <= framing.PIECES * (len(line) + 3)
        turns, before = turns + 1, len(came.held)
        assert came.more != bool(found)
    assert (count // framing.PIECES, b"%x\r\n%b\r\n" % (count, b"a" * count)) == (turns, found)
    assert (b"0\r\n\r\n", TOP) == (came.take(), bytes(came.held))
