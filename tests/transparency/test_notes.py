"""Signed notes and checkpoints: C2SP's own example, and nothing malleable."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import NoteError
from appliance.transparency import note, reading
from appliance.transparency.checkpoint import Checkpoint
from appliance.transparency.note import COSIGNS, Note, NoteKey

# The example of golang.org/x/mod/sumdb/note, whose format C2SP took over.
PETER = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
SAID = ("If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n\n"
        "— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n")
PRIVATE = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
HERE = Checkpoint("appliance/audit/00", 7, bytes(32))
SIGNED = Note(HERE.text, (note.sign(HERE.text, HERE.origin, PRIVATE),
                          note.sign(HERE.text, "witness.example", PRIVATE, when=1_800_000_000))).encode()
KEY = NoteKey(HERE.origin, PRIVATE.public_key().public_bytes_raw())


def test_another_programs_note_verifies() -> None:
    """The key is read in its form and written again, and the note is the same bytes again."""
    key, found = reading.key(PETER), reading.note(SAID.encode())
    assert key.check(found) is None
    assert (PETER, SAID.encode()) == (key.text, found.encode())


def test_a_cosignature_has_its_time() -> None:
    """It is over the time, too, so that another time does not verify."""
    key = NoteKey("witness.example", KEY.public, COSIGNS)
    assert 1_800_000_000 == key.check(reading.note(SIGNED))
    line = reading.note(SIGNED).signatures[1]
    other = note.SignatureLine(line.name, line.key_id, (1_800_000_001).to_bytes(8, "big") + line.data[8:])
    with pytest.raises(NoteError, match="does not verify"):
        key.check(Note(HERE.text, (other,)))


@pytest.mark.parametrize("text", [
    "", "a\n7\n", "a\n07\n" + "A" * 43 + "=\n", "a\n7\n" + "A" * 43 + "=\nmore\n", "a\n-1\n" + "A" * 43 + "=\n",
    "a\n9007199254740992\n" + "A" * 43 + "=\n", "a\n7\n" + "A" * 42 + "B=\n", "\n7\n" + "A" * 43 + "=\n"])
def test_other_texts_are_no_checkpoints(text: str) -> None:
    """Sizes with a zero before them or too large, roots of another length or spelling, extension lines."""
    with pytest.raises(NoteError):
        reading.head(text)


def test_two_lines_of_one_key_are_none() -> None:
    """Which of them counts is nobody's choice."""
    line = note.sign(HERE.text, HERE.origin, PRIVATE)
    with pytest.raises(NoteError, match="two signatures by appliance/audit/00"):
        KEY.check(Note(HERE.text, (line, line)))


def test_at_most_so_many_lines_are_read() -> None:
    """Sixty-four, and not one more."""
    line = note.sign(HERE.text, HERE.origin, PRIVATE).line()
    assert 64 == len(note.parse_lines(64 * line))
    with pytest.raises(NoteError, match="too many"):
        note.parse_lines(65 * line)


_TEXT, _LINES = SAID.split("\n\n")


@pytest.mark.parametrize(("data", "words"), [
    (_LINES, "no empty line"), (f"\n\n{_LINES}", "no empty line"), (f"{_TEXT}\n{_LINES}", "no empty line"),
    (f"{_TEXT}\n\n", "no end"), (SAID[:-1], "no end"), (f"{_TEXT}\n\nPeter\n", "no signature"), ("", "not a text"),
    (SAID.replace("your", "your\t", 1), "not a text")])
def test_other_texts_are_no_notes(data: str, words: str) -> None:
    """Signatures without a text or apart from it, a text without signatures, a line without its end."""
    with pytest.raises(NoteError, match=words):
        reading.note(data.encode())


@given(place=st.integers(0, len(SIGNED) - 1), bit=st.integers(0, 7))
def test_any_changed_bit_fails(place: int, bit: int) -> None:
    """Of text and signatures: what still parses does not verify, or is another key's line."""
    changed = bytearray(SIGNED)
    changed[place] ^= 1 << bit
    try:
        here, found = reading.signed_head(bytes(changed), KEY)
        NoteKey("witness.example", KEY.public, COSIGNS).check(found)
    except NoteError:
        return
    pytest.fail(f"{here} was accepted")
