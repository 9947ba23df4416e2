"""The memory of a deployment as a table, and how fast it will answer: what a boot would do, without
booting.

The speed is an estimate of decoding for one request. Each token reads all weights once: resident
ones from memory, streamed ones from the file (or its kept records) and through the cipher, at the
rates measured here. Then it multiplies them, which from a core's cache is hardly faster than from
memory. A sealed model's tiles from the disk are read while tiles before them are decrypted and
multiplied, but not while others are.
"""

from __future__ import annotations

from dataclasses import dataclass

from appliance.boot.planning import budget
from appliance.boot.planning.budget import Division
from appliance.boot.planning.footprint import Footprint, read
from appliance.boot.planning.rates import Rates
from appliance.boot.planning.residency import packed_nbytes, read_by_a_pass
from appliance.models.catalogue import Catalogue
from appliance.policy import Policy


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed expected of one model, one request at a time."""

    model: str
    resident_nbytes: int  # of weights that a token reads from memory
    streamed_nbytes: int  # of weights that a token reads through the cipher
    kept_nbytes: int  # of those, as they are kept in memory, encrypted
    from_disk: bool  # the others: whether the file is too large to stay in the page cache beside everything else
    tokens_per_second: float


def speeds(policy: Policy, catalogue: Catalogue, division: Division, rates: Rates) -> list[Speed]:
    """The expectation for each model that has a usable header."""
    left = None if division.room is None else division.room - division.nbytes
    found = []
    for model in policy.at_boot:
        each = read(model, policy, catalogue)
        if each.tiles is not None:
            resident, streamed = _split(each, division)
            kept = min(division.shares[model.name].kept, streamed)
            from_disk = streamed > kept and left is not None and left < each.size - kept
            seconds = seconds_of_a_token(resident, kept, streamed - kept, rates, from_disk=from_disk,
                                         ahead=from_disk and each.readable_ahead > 0)
            found.append(Speed(model.name, resident, streamed, kept, from_disk, 1 / seconds if seconds else 0.0))
    return found


def seconds_of_a_token(resident: int, kept: int, read: int, rates: Rates, *, from_disk: bool, ahead: bool) -> float:
    """For so many bytes of weights: in memory, in memory but encrypted, and read from the file;
    `ahead`: while others are in use."""
    there = resident / rates.memory + kept * (2 / rates.memory + 1 / rates.cipher)
    work, brought = read * (1 / rates.memory + 1 / rates.cipher), read / (rates.disk if from_disk else rates.cache)
    return there + (max(work, brought) if ahead else work + brought)


def _split(each: Footprint, division: Division) -> tuple[int, int]:
    """Bytes of weights that a token reads: resident, streamed. It reads one row of the embeddings.
    """
    resident = division.shares[each.name].resident
    read = each.size if each.tiles is None else sum(map(packed_nbytes, read_by_a_pass(each.tiles)))
    if resident is None:
        return read, 0
    kept = min(resident, read)
    return kept, read - kept


def plan(policy: Policy, catalogue: Catalogue, room: int | None) -> Division:
    """Plan a boot by `policy` with `room` bytes. Files that cannot be read count as nothing."""
    return budget.divide(policy, catalogue, room)
