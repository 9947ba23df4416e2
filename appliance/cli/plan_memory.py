"""`appliance plan-memory FILE`: what a deployment takes of the memory there is, and how fast it
will answer."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from appliance.boot import checks
from appliance.boot.planning import budget, fitness, forecast, rates
from appliance.boot.planning.budget import Division
from appliance.boot.planning.footprint import kibibytes, mebibytes, needed, read, there
from appliance.boot.planning.rates import Rates
from appliance.boot.planning.shape import ShapeCatalogue
from appliance.boot.planning.speed import Speed, plan, speeds
from appliance.boot.running.interval import interval_of
from appliance.boot.running.price import Price, prices
from appliance.cli import numbers
from appliance.codec.printable import quantity
from appliance.engine.forward.kvcache import page_nbytes
from appliance.engine.forward.states import state_nbytes
from appliance.errors import BootError
from appliance.kernels.layouts.attention import PAGE
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
    found = plan(policy, catalogue, budget.room(policy) if args.memory is None else args.memory << 20)
    odd: dict[str, str] = {}
    for concern in forecast.warnings(policy, catalogue, found):
        name = concern.model.name
        odd[name] = "; ".join(filter(None, (odd.get(name), concern.text)))
        print(f"warning: model {name}: {concern.text}", file=sys.stderr)
    measured = None if args.no_speed or found.refusal else _measured(files, shapes)
    expected = [] if measured is None else speeds(policy, catalogue, found, measured)
    paid = [] if measured is None else _prices(policy, catalogue, found, measured, expected)
    late = any(price.refusal for price in paid)
    later = [] if found.refusal else list(_on_demand(policy, catalogue, found))
    texts = list(_texts(policy, catalogue, found))
    if args.json:
        print(json.dumps({**asdict(found), "nbytes": found.nbytes,
                          "rates": None if measured is None else asdict(measured),
                          "speeds": [asdict(speed) for speed in expected], "on_demand": later,
                          "texts": [asdict(each) for each in texts], "cadence": [asdict(price) for price in paid],
                          "warnings": odd}, indent=2))
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
    for text in texts:
        print(_text(text, found))
    for price in paid:
        print(f"{price.model}: cadence does not hold: {price.refusal}" if price.refusal else _described(price))
    for each in later:
        print(f"{each['model']}: on demand: {each['refusal'] or 'fits beside what the boot loads'}")
    if found.refusal is not None:
        print(f"does not fit: {found.refusal}")
    return int(found.refusal is not None or late)


@dataclass(frozen=True, slots=True)
class TextRoom:
    """The room of a model for texts."""

    model: str
    context: int  # positions of a text
    page_nbytes: int  # of keys and values of 64 positions
    state_nbytes: int  # of a text's state in layers without keys and values
    snapshots: int | None  # states of earlier texts that are kept; None where none are asked for
    longest_context: int | None  # positions that fit into the memory; None where that is not known


def _texts(policy: Policy, catalogue: Catalogue, found: Division) -> Iterator[TextRoom]:
    """Yield the room for texts of each model that the boot loads."""
    for model in policy.at_boot:
        each = read(model, policy, catalogue)
        if each.shape is not None and each.foreign is None:
            kept = forecast.snapshots(policy, catalogue, model, found.shares[model.name])
            longest = None if found.room is None else forecast.longest_context(policy, catalogue, model, found.room)
            yield TextRoom(model.name, each.context, page_nbytes(each.shape, model.kv_cache), state_nbytes(each.shape),
                           None if kept is None else kept.count, longest)


def _text(room: TextRoom, found: Division) -> str:
    """Return the room for texts for people."""
    state = f" and {kibibytes(room.state_nbytes)} of a state" if room.state_nbytes else ""
    kept = "" if room.snapshots is None else f"; {quantity(room.snapshots, 'state')} of earlier texts"
    longest = "" if room.longest_context is None or found.room is None else (
        f"; the longest context that fits into {there(found.room)} has {quantity(room.longest_context, 'token')}")
    return (f"{room.model}: a text of {quantity(room.context, 'token')} takes {kibibytes(room.page_nbytes)} for each "
            f"{PAGE}{state}{kept}{longest}")


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
