"""Stop strings are cut out whatever the token borders, and never leak."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import EngineError
from appliance.text.stops import MAX_LENGTH, MAX_STOPS, StopFilter


def plain_cut(text, stops):
    """The text before the stop string that ends first (of these the one that starts first); all of it without one."""
    for end in range(len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return text[: min(starts)]
    return text


@given(st.lists(st.text("ab c", max_size=6), max_size=12), st.lists(st.text("ab", min_size=1, max_size=4), max_size=4))
def test_any_chunking_gives_the_same_cut(chunks, stops):
    """However a text is cut into pieces, what is passed on is the text before the first stop string."""
    found = StopFilter(stops)
    passed = ""
    for chunk in chunks:
        passed += found.push(chunk)
        assert plain_cut("".join(chunks), stops).startswith(passed)
    passed += found.flush()
    whole = "".join(chunks)
    assert plain_cut(whole, stops) == passed
    assert any(stop in whole for stop in stops) == found.stopped


@pytest.mark.parametrize(("chunks", "passed"), [
    (["Hello <", "|im_", "end|> leak"], ["Hello ", "", ""]),
    (["a<|x"], ["a<|x"]),
    (["<|im_end", "!"], ["", "<|im_end!"]),
])
def test_held_back_text(chunks, passed):
    """Text is held back exactly as long as it may become the stop string."""
    found = StopFilter(["<|im_end|>"])
    assert passed == [found.push(chunk) for chunk in chunks]


@pytest.mark.parametrize("stops", [[""], ["x" * (MAX_LENGTH + 1)], ["x"] * (MAX_STOPS + 1)])
def test_out_of_range_is_refused(stops):
    """Empty, too long or too many stop strings are refused."""
    with pytest.raises(EngineError):
        StopFilter(stops)
