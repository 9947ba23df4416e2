"""Numbers on the command line: one way to read them in every verb, with bounds and an error that says both."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from appliance.cli import main as command
from appliance.cli import numbers
from appliance.cli.main import main

HUGE = "9" * 5000
NONE = ["", " 5", "5 ", "+5", "1_0", "٣", "nan", "inf", "-inf", "0x5", "1,5", "1.5G", HUGE]  # numbers of no kind
WHOLE = [*NONE, "1.0", "1e3", "-1"]

KUBEVIRT = ["image", "kubevirt", "FILE", "--container", "NAME"]
RECORD = ["image", "record", "--machine", "m", "-o", "OUT"]
SEAL = ["model", "tpm-seal", "FILE", "--key", "KEY"]
CONNECT = ["connect", "http://127.0.0.1:1", "--policy", "FILE"]
WATCH, TOP, CONSOLE = ([verb, *CONNECT[1:]] for verb in ("watch", "top", "console"))
OPTIONS = [  # words, option, what is allowed, the nearest values that are not
    (["schema"], "--version", "1 to 2", ["0", "3"]),
    (["init", "DIR"], "--port", "1 to 65535", ["0", "65536"]),
    (["plan-memory", "FILE"], "--memory", "1 to 16777216", ["0", "16777217"]),
    (["serve", "FILE"], "--listen-port", "0 to 65535", ["65536"]),
    (["infer", "FILE", "--prompt", "x"], "--max-tokens", "1 to 2147483648", ["0", "2147483649"]),
    (["infer", "FILE", "--prompt", "x"], "--seed", "0 to 18446744073709551615", ["18446744073709551616"]),
    (["infer", "FILE", "--prompt", "x"], "--threads", "1 to 1024", ["0", "1025"]),
    (["infer", "FILE", "--prompt", "x"], "--choice", "0 to 127", ["128"]),
    (["audit", "export"], "--record", "0 to 9007199254740991", ["9007199254740992"]),
    (["audit", "prove"], "--old", "0 to 9007199254740991", ["9007199254740992"]),
    (["audit", "prove"], "--size", "0 to 9007199254740991", ["9007199254740992"]),
    (["receipt", "replay"], "--threads", "1 to 1024", ["0", "1025"]),
    (["kernels", "build"], "--jobs", "1 to 4096", ["0", "4097"]),
    (["model", "key", "FILE"], "--key-version", "1 to 2147483648", ["0", "2147483649"]),
    ([*SEAL, "--pcrs", "4"], "--key-version", "1 to 2147483648", ["0", "2147483649"]),
    (["model", "seal", "FILE", "-o", "OUT", "--key", "KEY"], "--tile-size", "4096 to 16777216", ["4095", "16777217"]),
    (["image", "boot", "DIR"], "--memory", "1 to 16777216", ["0", "16777217"]),
    (["image", "boot", "DIR"], "--cpus", "1 to 4096", ["0", "4097"]),
    (["image", "boot", "DIR"], "--port", "1 to 65535", ["0", "65536"]),
    (["image", "boot", "DIR"], "--vsock", "3 to 4294967294", ["2", "4294967295"]),
    (RECORD, "--memory", "1 to 16777216", ["0", "16777217"]),
    (RECORD, "--cpus", "1 to 4096", ["0", "4097"]),
    (KUBEVIRT, "--cpus", "1 to 4096", ["0", "4097"]),
    (KUBEVIRT, "--memory", "1 to 16777216", ["0", "16777217"]),
    (KUBEVIRT, "--max-replicas", "1 to 2147483647", ["0", "2147483648"]),
    (["fleet", "feed", "OUT"], "--version", "0 to 9007199254740991", ["9007199254740992"]),
    (KUBEVIRT, "--replicas", "1 to 2147483647", ["0", "2147483648"]),
    ([*SEAL, "--key-version", "1"], "--pcrs", "0 to 23", ["24", "4,,9", "4,24"]),
    (["image", "predict", "DIR"], "--vcpus", "1 to 512", ["0", "513", "1,,2", "1,0"]),
    (["image", "export", "DIR", "--igvm", "FILE", "-o", "OUT"], "--vcpus", "1 to 512", ["0", "513"]),
    (["image", "predict", "DIR"], "--gce-ram", "4 to 65536", ["3", "65537", "16,,32", "x"]),
    (["image", "reference", "DIR"], "--gce-ram", "4 to 65536", ["3", "65537", "16,,32", "x"]),
    (["image", "reference", "DIR"], "--max-vcpus", "1 to 512", ["0", "513"]),
]
DECIMAL = [
    (CONNECT, "--life", "0 to 31536000", ["-1", "31536001", "1e400", "-0.5", ".", "e5", "1e"]),
    (WATCH, "--every", "1 to 86400", ["0", "86401", "1e400"]), (TOP, "--every", "1 to 3600", ["0.9", "3601"]),
    (CONSOLE, "--every", "2 to 3600", ["1", "3601"]),
    (["collateral", "fetch", "FILE", "-o", "DIR"], "--timeout", "0 to 31536000", ["-1", "31536001", "1e400"]),
    (["image", "boot", "DIR"], "--seconds", "0 to 31536000", ["-1", "31536001", "1e400"]),
    (["accept", "DIR"], "--seconds", "0 to 31536000", ["-1", "31536001", "1e400"]),
    (["infer", "FILE", "--prompt", "x"], "--temperature", "0 to 100", ["-1", "100.1", "1e400"]),
]
OTHERS = [
    (["image", "export", "DIR", "--igvm", "FILE", "-o", "OUT"], "--guest-policy", "64 bits", ["-1", "0o7", HUGE]),
    (["image", "predict", "DIR"], "--guest-policy", "64 bits", ["-1", "0o7", "007", "0x10000000000000000", HUGE]),
    (CONNECT, "--listen", "0 to 65535", ["127.0.0.1", ":80", "127.0.0.1:", "127.0.0.1:٣", "127.0.0.1:65536",
                                         f"127.0.0.1:{HUGE}", "127.0.0.1:-1", "127.0.0.1:+1"]),
    (WATCH, "--listen", "0 to 65535", ["127.0.0.1", "127.0.0.1:65536", f"127.0.0.1:{HUGE}"]),
    (CONSOLE, "--listen", "0 to 65535", ["127.0.0.1", "127.0.0.1:65536", f"127.0.0.1:{HUGE}"]),
    (["image", "boot", "DIR"], "--broker", "1 to 65535", ["127.0.0.1", "127.0.0.1:0", f"127.0.0.1:{HUGE}"]),
]
CASES = [(words, option, allowed, [*(() if "," in nearest[-1] else WHOLE), *nearest])
         for words, option, allowed, nearest in OPTIONS]
CASES += [(words, option, allowed, [*NONE, *nearest]) for words, option, allowed, nearest in DECIMAL]
CASES += OTHERS


@pytest.mark.parametrize(("words", "option", "allowed", "refused"), CASES, ids=lambda value: str(value)[:40])
def test_what_is_no_number_within_bounds(words: list[str], option: str, allowed: str, refused: list[str],
                                         capsys: pytest.CaptureFixture[str]) -> None:
    """Usage, exit code 2: what was found, shortened, and what is allowed; before any file is looked at."""
    for text in refused:
        with pytest.raises(SystemExit) as caught:
            main([*words, f"{option}={text}"])
        told = capsys.readouterr().err
        assert (2, True) == (caught.value.code, f"error: argument {option}: " in told), text
        found = told.rpartition(f"argument {option}: ")[2]
        assert repr(text[:20])[:-1] in found
        assert allowed in found
        assert len(found) < 200


ACCEPTED = [
    (numbers.whole(0, 65535), "0", 0), (numbers.whole(0, 65535), "0065535", 65535), (numbers.whole(-3, 5), "-3", -3),
    (numbers.SECONDS, "300", 300.0), (numbers.SECONDS, ".5", 0.5), (numbers.SECONDS, "3.", 3.0),
    (numbers.SECONDS, "1e3", 1000.0), (numbers.SECONDS, "25E-2", 0.25), (numbers.MEBIBYTES, "16777216", 16777216),
    (numbers.listed(0, 23, "4"), "11,4,11", [4, 11]), (numbers.bits, "0x20000", 131072), (numbers.bits, "0", 0),
    (numbers.bits, "131072", 131072), (numbers.bits, "0XFFFFFFFFFFFFFFFF", 18446744073709551615),
    (numbers.address(0, "x"), "[::1]:0", ("::1", 0)),
    (numbers.address(1, "x"), "localhost:65535", ("localhost", 65535)),
]


@pytest.mark.parametrize(("kind", "text", "value"), ACCEPTED)
def test_numbers(kind: Callable[[str], Any], text: str, value: Any) -> None:
    """What people write is read as they mean it."""
    assert value == kind(text)


Path = tuple[str, ...]


def _options(parser: argparse.ArgumentParser, path: Path) -> Iterator[tuple[Path, argparse.Action]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from _options(below, (*path, name))
        else:
            yield path, action


def test_no_verb_reads_numbers_as_python_does() -> None:
    """Nothing is given to `int` or `float`, and every option of a number is in the tables above."""
    found = {(*path, option) for verb in command.VERBS for path, action in _options(command.parser_of(verb), ())
             for option in action.option_strings[-1:]
             if action.type in (int, float)
             or getattr(action.type, "__module__", "") in (numbers.__name__, "appliance.cli.whole")}
    tested = {(*(word for word in words[:2] if word.islower() and "/" not in word), option)
              for words, option, _, _ in CASES if option != "--broker"}
    assert tested == found
