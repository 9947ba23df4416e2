"""The output to the person who starts the service: progress, a short boot report, how to ask the
first question.

All of it goes to standard error; standard output belongs to the audit log. Nothing here is about a
single request: who asks could fill a terminal. Refusals are counted by code when the service has
stopped.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from appliance.boot.booted import Booted
from appliance.boot.checks import Operator
from appliance.boot.report import VERDICTS
from appliance.boot.sequence import boot
from appliance.codec.printable import quantity
from appliance.http.listen import BoundSocket
from appliance.platforms import BY_NAME
from appliance.policy import InvalidPolicyError, load, render
from appliance.service import server

EXAMPLE = """\
    from openai import OpenAI
    client = OpenAI(base_url="{url}/v1", api_key="...")
    answer = client.chat.completions.create(
        model="{model}", messages=[{{"role": "user", "content": "Hello!"}}])
    print(answer.choices[0].message.content)"""
EXAMPLE_OF_TEXT = """\
    from openai import OpenAI
    client = OpenAI(base_url="{url}/v1", api_key="...")
    answer = client.completions.create(model="{model}", prompt="Once upon a time", max_tokens=50)
    print(answer.choices[0].text)"""


_REDRAW_SECONDS, _LINE_SECONDS = 0.1, 10.0


class Console:
    """Writes for a terminal, for a file, or as JSON lines."""

    def __init__(self, out: TextIO, *, as_json: bool) -> None:
        self._out = out
        self._json = as_json
        self._live = out.isatty() and not as_json and os.environ.get("TERM") != "dumb"
        self._step, self._begun, self._drawn = "", 0.0, 0.0

    def progress(self, step: str, done: int, total: int, unit: str) -> None:
        """A `Progress` of the boot: a new step begins, has come this far, or has ended."""
        now = time.monotonic()
        if step != self._step:
            self._step, self._begun, self._drawn = step, now, now
            if self._live:
                self._draw(f"{step} ...")
        if unit in VERDICTS:
            self._end_step(unit)
        elif unit and not (done or total):
            self._say(unit)
        elif total:
            self._advance(done, total, unit, now)

    def _advance(self, done: int, total: int, unit: str, now: float) -> None:
        """Show how far a step is: a bar on a terminal; elsewhere a line from time to time, since a
        slow machine looks like one that hangs."""
        due = now - self._drawn > (_REDRAW_SECONDS if self._live else _LINE_SECONDS)
        if self._json or not (due or (self._live and done == total)):
            return
        self._drawn = now
        filled = 24 * done // total
        amount = f"{done / 1e6:,.0f} of {total / 1e6:,.0f} MB" if unit == "bytes" else f"{done} of {total} {unit}"
        if self._live:
            self._draw(f"{self._step:<12} [{'#' * filled:<24}] {amount}")
        else:
            self._say(amount)

    def ready(self, booted: Booted, listening: list[BoundSocket]) -> None:
        """The rest of the boot report, and the ready line."""
        if self._json:
            self._emit({"event": "ready", "listening": [place.url for place in listening],
                        "policy_sha384": booted.policy_digest.hex(), "platform": booted.attestor.platform,
                        "models": list(booted.models)})
            return
        tolerated = [f"{step.name}: {step.detail}" for step in booted.report.steps if step.verdict == "tolerated"]
        lines = [f"  tolerated    {line}" for line in tolerated]
        done = sum(measure.outcome == "done" for measure in booted.measures)
        measures = quantity(len(booted.measures), "measure")
        lines.append(f"  sandbox      {done} of {measures} in force; /health names each")
        if warning := BY_NAME[booted.attestor.platform].console:
            lines.append(f"  {warning}")
        lines += _about_models(booted)
        urls = [_for_clients(place.url) for place in listening]
        if any("//ADDRESS:" in url for url in urls):
            lines.append("  ADDRESS      is any of this machine's")
        lines += [f"  policy       {booted.policy_digest.hex()}",
                  f"  models       {', '.join(booted.models) or 'none yet'}",
                  f"ready on {', '.join(urls)} after {booted.report.duration_us / 1e6:.1f} s; SIGTERM or Ctrl+C drains"]
        self._out.write("\n".join(lines) + "\n")
        web = next((url for url in urls if url.startswith("http:")), None)  # others are verified first
        if web is not None and booted.models:
            name, model = next(iter(booted.models.items()))
            self._out.write((EXAMPLE if model.template else EXAMPLE_OF_TEXT).format(url=web, model=name) + "\n")
        self._out.flush()

    def tell(self, event: str, **facts: Any) -> None:
        """Say what happens to a running service, in a line; a reader that has gone is no reason to
        end it."""
        with contextlib.suppress(OSError, ValueError):
            if self._json:
                self._emit({"event": event, **facts})
            else:
                self._out.write(_SAID[event](facts) + "\n")
                self._out.flush()

    def findings(self, error: InvalidPolicyError) -> None:
        """The findings on the policy."""
        if self._json:
            self._emit({"event": "refused", "diagnostics": [found.as_json() for found in error.diagnostics]})
        else:
            self._out.write(render([found for found in error.diagnostics if found.severity == "error"]) + "\n")
            if error.hint is not None:
                self._out.write(f"hint: {error.hint}\n")

    def _end_step(self, verdict: str) -> None:
        seconds = time.monotonic() - self._begun
        if self._json:
            self._emit({"event": "step", "step": self._step, "verdict": verdict, "seconds": round(seconds, 3)})
        else:
            self._draw(f"  {self._step:<12} {verdict:<9} {seconds:6.2f} s")
            self._out.write("\n")
        self._step = ""

    def _say(self, text: str) -> None:
        """Something about the present step, in a line of its own."""
        if self._json:
            self._emit({"event": "note", "step": self._step, "text": text})
        else:
            self._draw(f"  {self._step:<12} {text}\n")

    def _draw(self, text: str) -> None:
        self._out.write(f"\r\x1b[K{text}" if self._live else text)
        self._out.flush()

    def _emit(self, record: dict[str, Any]) -> None:
        self._out.write(json.dumps(record) + "\n")
        self._out.flush()


def _about_models(booted: Booted) -> list[str]:
    """The oddities of models that run all the same."""
    lines = [f"  no chats     {name} has no chat template: it continues prompts only"
             for name, model in booted.models.items() if model.template is None]
    return lines + [f"  warning      {name}: {warning}" for name, model in booted.models.items()
                    for warning in model.tokenizer.warnings]


def _for_clients(url: str) -> str:
    """With a word in the place of an address that stands for all of this machine: no client can use
    that."""
    return url.replace("//0.0.0.0:", "//ADDRESS:").replace("//[::]:", "//ADDRESS:")


def _end_words(facts: Mapping[str, Any]) -> str:
    codes = ", ".join(f"{code} {count}" for code, count in sorted(facts["refusals"].items()))
    left = f"; a pass did not end of {', '.join(facts['abandoned'])}" if facts["abandoned"] else ""
    return f"stopped: {quantity(facts['requests'], 'request')} answered, {facts['refused']} refused" + (
        f" ({codes})" if codes else "") + left


_SAID: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "draining": lambda facts: f"draining: {quantity(facts['in_flight'], 'request')} in progress, which may take "
                              f"{facts['seconds']:g} s; a second signal cancels them",
    "stopped": _end_words,
    "state_reserve": lambda facts: f"state disk nearly full: {facts['free_bytes']} bytes are left, which are kept for "
                                   "requests with a key; make it larger soon",
    "state_full": lambda facts: f"state disk full: {facts['free_bytes']} bytes are left, for the end of the log; "
                                "requests with a key are refused until the disk is larger and the appliance was "
                                "started again",
    "unaudited": lambda facts: f"unaudited: {facts['reason']}; every request is refused until the appliance is started "
                               "again",
    "model_loaded": lambda facts: f"model {facts['model']} loaded: generation {facts['generation']}",
    "model_unloaded": lambda facts: f"model {facts['model']} unloaded: generation {facts['generation']}; its memory "
                                    "is wiped when its last answer has ended",
    "model_refused": lambda facts: f"model {facts['model']} not loaded: {facts['code']}",
    "model_failed": lambda facts: f"model {facts['model']} failed: {facts['code']}; it answers no more until the next "
                                  "boot",
}


def run(policy: Path, *, operator: Operator, model_folders: tuple[Path, ...], as_json: bool) -> int:
    """Load, boot, serve; the exit code as cli/serve.py documents it. BootError when the boot is
    refused."""
    console = Console(sys.stderr, as_json=as_json)
    try:
        loaded = load(policy)
    except InvalidPolicyError as error:
        console.findings(error)
        return 1

    def start(booted: Booted) -> int:
        return server.run(booted, announce=lambda listening: console.ready(booted, listening), tell=console.tell)

    return boot(loaded, start_service=start, operator=operator, model_folders=model_folders, progress=console.progress)
