"""Samplers through the API: under schema 2 within its bounds, under schema 1 not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.server import Server, write_policy

ON: list[dict[str, Any]] = [
    {"typical_p": 0.2}, {"tfs_z": 0.3}, {"top_n_sigma": 0.3}, {"epsilon_cutoff": 280}, {"eta_cutoff": 9500.0},
    {"xtc_probability": 1.0, "xtc_threshold": 0.001}, {"mirostat_mode": 2, "mirostat_tau": 1.0}, {"mirostat": 1},
    {"dynatemp_range": 1.5}, {"guidance_scale": 3}, {"token_healing": 3},
    {"dry_multiplier": 5.0, "dry_allowed_length": 0},
    {"samplers": ["temperature"]}, {"sampler_priority": ["temperature", "top_p"], "top_p": 0.3}]
BODY: dict[str, Any] = {"model": "tiny", "prompt": "aa bb aa bb aa", "max_tokens": 24, "seed": 5, "temperature": 1.4}


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Server]:
    """A server whose policy is of schema 2."""
    bounds = 'sampling {\n bound "dry_multiplier" { max = 6 }\n bound "top_k" { max = 50 }\n }'
    server = Server(write_policy(tmp_path_factory.mktemp("second"), {"tiny": tiny_model}, schema=2, model=bounds),
                    [tiny_model]).wait_ready()
    yield server
    server.stop()


def _text(server: Server, **more: Any) -> str:
    done = server.client().completions.create(**BODY, extra_body=more)
    return done.choices[0].text


def _refusal(server: Server, **more: Any) -> tuple[str | None, str | None, str]:
    with pytest.raises(openai.BadRequestError) as caught:
        _text(server, **more)
    return caught.value.code, caught.value.param, caught.value.message


def test_each_changes_an_answer(second: Server) -> None:
    """The same seed gives the same answer, and another one than without the sampler."""
    plain = _text(second)
    assert plain == _text(second)
    for more in ON:
        text = _text(second, **more)
        assert text == _text(second, **more), more
        assert text != plain, more


def test_bounds_hold(second: Server) -> None:
    """A value outside, an unknown sampler, and an order that evades a bound are refused by name."""
    code, param, words = _refusal(second, dry_multiplier=7)
    assert ("invalid_value", "dry_multiplier", True) == (code, param, "allowed are 0 to 6" in words)
    assert ("invalid_value", "samplers") == _refusal(second, samplers=["infill"])[:2]
    assert ("invalid_value", "dry_sequence_breakers.0") == _refusal(second, dry_sequence_breakers=["x" * 41])[:2]
    assert "dry_sequence_breakers" == _refusal(second, dry_sequence_breakers=[1])[1].partition(".")[0]  # type: ignore[union-attr]
    assert ("invalid_value", "mirostat") == _refusal(second, mirostat=3)[:2]


def test_healing_is_for_free_texts(second: Server) -> None:
    """True is one token; chats and structured answers refuse it by name, and take what turns it off."""
    assert _text(second, token_healing=True) == _text(second, token_healing=1)
    assert _text(second) == _text(second, token_healing=False) == _text(second, token_healing=0)
    assert ("unsupported_parameter", "token_healing") == _refusal(second, token_healing=1, guided_regex="a+")[:2]
    chat: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
    with pytest.raises(openai.BadRequestError, match="only texts that go on freely can have it") as caught:
        second.client().chat.completions.create(**chat, extra_body={"token_healing": 1})
    assert ("unsupported_parameter", "token_healing") == (caught.value.code, caught.value.param)
    second.client().chat.completions.create(**chat, extra_body={"token_healing": False})


def test_schema_1_refuses_them(service: Server) -> None:
    """By name, as a parameter that is not supported; a neutral value changes nothing."""
    plain = _text(service)
    for more in ON[:-1]:
        name = next(iter(more)).removesuffix("_mode")
        assert ("unsupported_parameter", name) == _refusal(service, **more)[:2]
    assert plain == _text(service, typical_p=1, mirostat=0, mirostat_tau=9, xtc_probability=0, dry_base=3, samplers=[])
    assert plain == _text(service, samplers=["top_k", "typ_p", "top_p", "min_p", "temperature"])
