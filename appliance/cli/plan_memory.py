"""`appliance plan-memory FILE`: what a deployment takes of the memory there is, and how fast it
will answer."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from appliance.boot import checks
from appliance.boot.planning import budget, fitness, forecast, rates
from appliance.boot.planning.budget import Division
from appliance.boot.planning.footprint import mebibytes, needed, there
from appliance.boot.planning.rates import Rates
from appliance.boot.planning.shape import ShapeCatalogue
from appliance.boot.planning.speed import Speed, plan, speeds
from appliance.boot.running.interval import interval_of
from appliance.boot.running.price import Price, prices
from appliance.cli import numbers
from appliance.codec.printable import quantity
from appliance.errors import BootError
from appliance.kernels.runtime import quota
from appliance.models.catalogue import Catalogue
from appliance.policy import Policy
from appliance.policy.explaining.checking import load

_TRIAL_NBYTES = 64 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("file", type=Path, metavar="FILE", help="the policy")
    parser.add_argument("--models", type=Path, action="append", default=[], metavar="DIR",
                        help="a folder with model files, besides the policy's own; may be given again")
    parser.add_argument("--shape", type=_named, action="append", default=[], metavar="NAME=FILE",
                        help="plan for a model that is not at hand, by the beginning of its GGUF file or the output of "
                             "`appliance model inspect --shape`; may be given again")
    parser.add_argument("--memory", type=numbers.MEBIBYTES, metavar="MIB",
                        help="plan for so many MiB, whatever the policy's budget (default: that, or what is free here, "
                             "if less)")
    parser.add_argument("--no-speed", action="store_true", help="measure nothing and predict no speed")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    parser.epilog = ("exit codes: 0 it fits, 1 it does not, or a cadence does not hold,\n"
                     "2 unknown: a model is missing or cannot run here")


def _named(text: str) -> tuple[str, Path]:
    name, separator, path = text.partition("=")
    if not (name and separator and path):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FILE, with the name of a model of the policy")
    return name, Path(path)


def _two_digits(value: float) -> str:
    """Return a positive number for people, rounded to two digits that count: 0.034, 89, 110, 7,300.
    """
    return f"{float(f'{value:.2g}'):,g}"


def run(args: argparse.Namespace) -> int:
    """Print the table; 1 when the memory does not suffice."""
    policy = load(args.file).policy
    shapes = dict(args.shape)
    if unknown := sorted(shapes.keys() - {model.name for model in policy.models}):
        raise BootError(f"the policy has no model {unknown[0]}; it has "
                        f"{', '.join(model.name for model in policy.models)}", code="usage")
    files = checks.find_models(policy, [args.file.parent, *args.models])
    catalogue = ShapeCatalogue(files, shapes)
    # An unusable file counts as little, and would fit.
    if unusable := [*checks.model_files(catalogue.paths)] or [*_unusable(policy, catalogue, shapes)]:
        raise BootError("; ".join(unusable), code="policy-not-met-here")
    if (bound := policy.tee.memory_budget_bytes) is not None and args.memory is not None and args.memory << 20 > bound:
        print(f"note: a boot takes no more than the policy's memory_budget, {mebibytes(bound)}; this is the plan for a "
              f"policy that allows {args.memory} MiB", file=sys.stderr)
    odd = {model.name: text for model, text in forecast.warnings(policy, catalogue)}
    for name, text in odd.items():
        print(f"warning: model {name}: {text}", file=sys.stderr)
    found = plan(policy, catalogue, budget.room(policy) if args.memory is None else args.memory << 20)
    measured = None if args.no_speed or found.refusal else _measured(files, shapes)
    expected = [] if measured is None else speeds(policy, catalogue, found, measured)
    paid = [] if measured is None else _prices(policy, catalogue, found, measured, expected)
    late = any(price.refusal for price in paid)
    later = [] if found.refusal else list(_on_demand(policy, catalogue, found))
    if args.json:
        print(json.dumps({**asdict(found), "nbytes": found.nbytes,
                          "rates": None if measured is None else asdict(measured),
                          "speeds": [asdict(speed) for speed in expected], "on_demand": later,
                          "cadence": [asdict(price) for price in paid], "warnings": odd}, indent=2))
        return int(found.refusal is not None or late)
    for line in found.lines:
        print(f"{mebibytes(line.nbytes):>12}  {line.what}")
    print(f"{needed(found.nbytes):>12}  together")
    if found.room is not None:
        print(f"{there(found.room):>12}  there are")
    for name, reason in found.reasons.items():
        share = found.shares[name]
        how = "run by llama.cpp" if share.foreign else "resident" if share.resident is None else "streamed"
        print(f"{name}: {how}: {reason}")
    if measured is not None:
        print(f"measured here, GB/s: memory {measured.memory / 1e9:.1f}, cipher {measured.cipher / 1e9:.1f}, "
              f"file in the page cache {measured.cache / 1e9:.1f}, from disk {measured.disk / 1e9:.1f}")
    for speed in expected:
        disk = "disk" if speed.from_disk else "the page cache"
        where = f", for which it reads {mebibytes(speed.read_nbytes)} from {disk}"
        print(f"{speed.model}: about {_two_digits(speed.tokens_per_second)} tokens/s for one request; each token reads "
              f"{mebibytes(speed.resident_nbytes)} of resident weights and streams "
              f"{mebibytes(speed.streamed_nbytes)}{where if speed.read_nbytes else ''}; takes "
              f"{mebibytes(speed.memory_nbytes)}, and {mebibytes(speed.encrypted_nbytes)} of weights stay encrypted")
    for price in paid:
        print(f"{price.model}: cadence does not hold: {price.refusal}" if price.refusal else _described(price))
    for each in later:
        print(f"{each['model']}: on demand: {each['refusal'] or 'fits beside what the boot loads'}")
    if found.refusal is not None:
        print(f"does not fit: {found.refusal}")
    return int(found.refusal is not None or late)


def _prices(policy: Policy, catalogue: Catalogue, found: Division, measured: Rates,
            expected: list[Speed]) -> list[Price]:
    """Return the price of each model's cadence; none where the policy has none."""
    interval = interval_of(policy)
    return [] if interval is None else [
        *prices(policy, catalogue, found, measured, expected, interval, quota.cpus())]


def _described(price: Price) -> str:
    """Return the price of a cadence for people."""
    slow, fast = price.prompt_tokens_per_second
    return (f"{price.model}: cadence: about {quantity(price.rows, 'row')} a pass, which takes "
            f"{1000 * price.pass_seconds:.0f} ms: {_two_digits(price.tokens_per_second)} tokens/s for each of "
            f"{quantity(price.answers, 'answer')}, prompts at {_two_digits(slow)} to {_two_digits(fast)} tokens/s; "
            f"about {_two_digits(price.core_seconds_an_hour)} core-seconds an hour, whether or not there is work")


def _on_demand(policy: Policy, catalogue: Catalogue, found: Division) -> Iterator[dict[str, str | None]]:
    """Yield each model that is loaded on demand: why it does not fit beside those of the boot, or
    None."""
    for model in policy.models:
        if model.load == "demand":
            beside = budget.divide(policy, catalogue, found.room, models=[model], beside=found.shares)
            yield {"model": model.name, "refusal": beside.refusal}


def _unusable(policy: Policy, catalogue: Catalogue, shapes: Mapping[str, Path]) -> Iterator[str]:
    """Models that cannot run here, and why. A shape tells nothing of a tokenizer."""
    whole = [model for model in policy.models if model.name not in shapes]
    bare = [model for model in policy.models if model.name in shapes]
    for model, error in (*forecast.refusals(policy, catalogue, whole), *fitness.refusals(policy, catalogue, bare)):
        yield fitness.description(model.name, catalogue.of(model).path, error)


def _measured(files: Mapping[str, Path], shapes: Mapping[str, Path]) -> Rates:
    """The rates of this machine. Where no model is at hand, a file beside the shape is read."""
    there = [path for name, path in files.items() if name not in shapes]
    if there:
        return rates.measure(there[0], quota.cpus())
    with tempfile.NamedTemporaryFile(dir=next(iter(shapes.values())).parent) as file:
        file.write(bytes(_TRIAL_NBYTES))
        file.flush()
        return rates.measure(Path(file.name), quota.cpus())
