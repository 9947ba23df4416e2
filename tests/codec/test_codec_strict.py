"""The one spelling of each: base64, JSON, text for a terminal, and opening a regular file."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from appliance.codec import strict
from appliance.codec.printable import ascii_only, plain
from appliance.codec.regularfile import WrongKindError, open_file


@pytest.mark.parametrize(("text", "data"), [("", b""), ("AA==", b"\0"), ("AAE=", b"\0\1"), ("+/+/", b"\xfb\xff\xbf")])
def test_base64_has_one_spelling(text: str, data: bytes) -> None:
    """RFC 4648, section 4; of section 5 with other letters, and without padding unless it is asked for."""
    url = text.replace("+", "-").replace("/", "_")
    assert data == strict.base64(text) == strict.base64url(url, padded=True) == strict.base64url(url.rstrip("="))
    assert url.rstrip("=") == strict.to_base64url(data)


@pytest.mark.parametrize("text", [
    "AA", "AA=", "A===", "AAE", "AA==\n", " AA==", "AA==AA==", "A-==", "\u00e4A==", "====", "="])
def test_other_base64_is_refused(text: str) -> None:
    """Without padding, cut off, with white space or letters of another alphabet."""
    with pytest.raises(ValueError):
        strict.base64(text)


@pytest.mark.parametrize("decode", [lambda: strict.base64("AB=="), lambda: strict.base64url("AB")])
def test_unused_bits_are_zero(decode: Any) -> None:
    """`AB==` is the byte of `AA==` in another spelling, and is told apart from what is no base64."""
    with pytest.raises(strict.SpellingError):
        decode()


@pytest.mark.parametrize("text", ["AA==", "A+", "A/", "A", "AA "])
def test_other_base64url_is_refused(text: str) -> None:
    """With padding, letters of the standard alphabet, cut off, with white space."""
    with pytest.raises(ValueError):
        strict.base64url(text)


@pytest.mark.parametrize(("text", "value"), [('{"a":1,"b":{"a":1.5}}', {"a": 1, "b": {"a": 1.5}}), (b"[1]", [1])])
def test_json_is_read(text: str | bytes, value: Any) -> None:
    """From text, or from bytes in UTF-8."""
    assert value == strict.json_value(text)


@pytest.mark.parametrize("text", [
    "", "{", "[1]x", "NaN", "[Infinity]", "\ufeff1", b"\xff", '"\u00e4"'.encode("utf-16"), "[" * 100_000])
def test_other_json_is_refused(text: str | bytes) -> None:
    """Cut off, followed by more, numbers that JSON has not, other encodings, nested too deep."""
    with pytest.raises(ValueError):
        strict.json_value(text)


def test_a_key_stands_once() -> None:
    """The error names the key; and where whole numbers are wanted, no other is taken."""
    with pytest.raises(strict.RepeatedKeyError) as caught:
        strict.json_value('{"a":{"b":1,"c":2,"b":1}}')
    assert "b" == caught.value.key
    assert 1 == strict.json_value("1", integers=True)
    with pytest.raises(ValueError):
        strict.json_value("1.0", integers=True)


@pytest.mark.parametrize(("text", "shown"), [
    ("a b", "a b"), ("a\nb\x1b[2J", "a?b?[2J"), ("\u202eabc", "?abc"), ("\u00e4", "\u00e4"),
    ("x" * 11, "x" * 10 + "\u2026")])
def test_a_strangers_text_drives_no_terminal(text: str, shown: str) -> None:
    """Control characters, line ends and what turns the direction of writing are taken out, and length is bounded."""
    assert shown == plain(text, 10)
    assert all(" " <= each <= "~" for each in ascii_only(text, 10))
    assert len(ascii_only(text, 10)) <= 10


def test_only_a_regular_file_is_opened(tmp_path: Path) -> None:
    """A FIFO does not make anyone wait, and it, a folder and a device are refused by kind; a missing file as such."""
    (tmp_path / "file").write_bytes(b"abc")
    descriptor, status = open_file(tmp_path / "file")
    assert (3, b"abc") == (status.st_size, os.read(descriptor, 8))
    os.close(descriptor)
    os.mkfifo(tmp_path / "fifo")
    for other in (tmp_path / "fifo", tmp_path, Path("/dev/null")):
        for disk in (False, True):
            with pytest.raises(WrongKindError, match="not a regular file"):
                open_file(other, disk=disk)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        with pytest.raises(OSError):
            open_file(tmp_path / "s")
    with pytest.raises(FileNotFoundError):
        open_file(tmp_path / "absent")
