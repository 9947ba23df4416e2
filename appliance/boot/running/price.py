"""The price of a cadence, estimated before a boot: how many rows a pass will have, what answers and
prompts get of it, and how long processors work, whether or not there is work.

A pass takes what a token takes (`planning.speed`), more for each further row, and the reading of
full contexts. A boot measures it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from appliance.boot.planning.budget import Division
from appliance.boot.planning.footprint import Footprint, read
from appliance.boot.planning.rates import Rates
from appliance.boot.planning.residency import is_expert, packed_nbytes, read_by_a_pass
from appliance.boot.planning.speed import Speed
from appliance.boot.running.interval import Interval
from appliance.engine.batch.speculate import PassCost
from appliance.engine.forward.forward import most_slots
from appliance.models.catalogue import Catalogue
from appliance.policy import Policy

_RATIO = 1000  # experts of a model, as far as only the share counts that a row uses


@dataclass(frozen=True, slots=True)
class Price:
    """The price of a model's passes at a fixed interval."""

    model: str
    rows: int  # of each pass
    pass_seconds: float
    tokens_per_second: float  # of each answer
    answers: int  # at the same time
    prompt_tokens_per_second: tuple[float, float]  # with all other answers in progress, and with none
    core_seconds_an_hour: float
    refusal: str | None  # why the machine does not hold the interval, as far as an estimate can tell


def prices(policy: Policy, catalogue: Catalogue, division: Division, rates: Rates, expected: list[Speed],
           interval: Interval, threads: int) -> Iterator[Price]:
    """Yield the price for each model whose speed is expected."""
    by_name = {model.name: model for model in policy.models}
    for speed in expected:
        each, share = read(by_name[speed.model], policy, catalogue), division.shares[speed.model]
        answers = min(share.slots, most_slots(share.rows), share.rows - 1)
        cost, contexts = _pass_cost(each), answers * each.slot[0] / rates.memory

        def seconds(rows: int, cost: PassCost = cost, token: float = speed.tokens_per_second,
                    contexts: float = contexts) -> float:
            return cost(rows) / token + contexts if token else 0.0

        least = answers + 1
        held = [rows for rows in range(least, share.rows + 1) if seconds(rows) <= interval.allowed]
        rows = max(held, default=least)
        refusal = None if held else f"{interval.refusal(seconds(least), least)}: {interval.hint(seconds(least))}"
        yield Price(speed.model, rows, seconds(rows), 1 / interval.seconds, answers,
                    ((rows - answers + 1) / interval.seconds, rows / interval.seconds),
                    3600 * threads * min(seconds(rows) / interval.seconds, 1.0), refusal)


def _pass_cost(each: Footprint) -> PassCost:
    """The cost of a pass by its rows, by the share of experts in what a row reads."""
    sizes = [0, 0]
    for segment in [] if each.tiles is None else read_by_a_pass(each.tiles, each.roles):
        sizes[is_expert(segment)] += packed_nbytes(segment)
    chosen = each.chosen * sizes[1]
    return PassCost(chosen / max(sizes[0] + chosen, 1), _RATIO, max(round(_RATIO * each.chosen), 1))
