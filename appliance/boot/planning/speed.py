"""The memory of a deployment as a table, and how fast it will answer: what a boot would do, without
booting.

The speed is an estimate of decoding for one request. Each token reads once the weights that all
tokens use, and the experts that it chose. Resident ones come from memory, streamed ones from the
file (or its kept records) and through the cipher, at the rates measured here. Of experts on the
disk all are read, unless the policy lets the host see which. Then it multiplies them, which from a
core's cache is hardly faster than from memory. A sealed model's tiles from the disk are read while
tiles before them are decrypted and multiplied, but not while others are.
"""

from __future__ import annotations

from dataclasses import dataclass

from appliance.boot.planning import budget
from appliance.boot.planning.budget import Division
from appliance.boot.planning.footprint import Footprint, read
from appliance.boot.planning.rates import Rates
from appliance.boot.planning.residency import is_expert, packed_nbytes, read_by_a_pass
from appliance.models.catalogue import Catalogue
from appliance.policy import Policy


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed expected of one model, one request at a time."""

    model: str
    resident_nbytes: int  # of weights that a token reads from memory
    streamed_nbytes: int  # of weights that a token reads through the cipher
    kept_nbytes: int  # of those, as they are kept in memory, encrypted
    read_nbytes: int  # of the file that a token reads
    from_disk: bool  # these: whether the file is too large to stay in the page cache beside everything else
    tokens_per_second: float
    memory_nbytes: int  # that the model takes in all
    encrypted_nbytes: int  # of all its weights: never decrypted but while they are used


@dataclass(frozen=True, slots=True)
class _Weights:
    """Bytes of weights by where they are."""

    resident: float
    kept: float  # encrypted, in memory
    disk: float

    def times(self, share: float) -> _Weights:
        return _Weights(share * self.resident, share * self.kept, share * self.disk)

    def __add__(self, other: _Weights) -> _Weights:
        return _Weights(self.resident + other.resident, self.kept + other.kept, self.disk + other.disk)


def speeds(policy: Policy, catalogue: Catalogue, division: Division, rates: Rates) -> list[Speed]:
    """The expectation for each model that has a usable header."""
    left = None if division.room is None else division.room - division.nbytes
    found = []
    for model in policy.at_boot:
        each = read(model, policy, catalogue)
        if each.tiles is not None:
            dense, experts = _where(each, division)
            access, whole = model.access_pattern, dense + experts
            used = dense + experts.times(1.0 if access == "oblivious" else each.chosen)
            brought = dense.disk + experts.disk * (each.chosen if access == "leaks" else 1.0)
            from_disk = brought > 0 and left is not None and left < each.size - whole.kept
            seconds = seconds_of_a_token(used.resident, used.kept, brought, rates, from_disk=from_disk,
                                         ahead=from_disk and each.readable_ahead > 0, opened=used.disk)
            memory = sum(line.nbytes for line in division.lines if line.what.startswith(f"{model.name}: "))
            found.append(Speed(
                model.name, round(used.resident), round(used.kept + used.disk), round(used.kept), round(brought),
                from_disk, 1 / seconds if seconds else 0.0, memory, round(whole.kept + whole.disk)))
    return found


def seconds_of_a_token(resident: float, kept: float, read: float, rates: Rates, *, from_disk: bool, ahead: bool,
                       opened: float | None = None) -> float:
    """For so many bytes of weights: in memory, in memory but encrypted, and read from the file, of
    which `opened` are decrypted (None: all). `ahead`: while others are in use."""
    there = resident / rates.memory + kept * (2 / rates.memory + 1 / rates.cipher)
    work = (read if opened is None else opened) * (1 / rates.memory + 1 / rates.cipher)
    brought = read / (rates.disk if from_disk else rates.cache)
    return there + (max(work, brought) if ahead else work + brought)


def _where(each: Footprint, division: Division) -> tuple[_Weights, _Weights]:
    """Weights that all tokens use, and experts. A token reads one row of the embeddings. The
    former are resident first, see `residency.choose`."""
    share = division.shares[each.name]
    sizes = [0, 0] if each.tiles is not None else [each.size, 0]
    for segment in [] if each.tiles is None else read_by_a_pass(each.tiles, each.roles):
        sizes[is_expert(segment)] += packed_nbytes(segment)
    room = sum(sizes) if share.resident is None else share.resident
    resident = (min(sizes[0], room), min(sizes[1], max(room - sizes[0], 0)))
    streamed = [size - part for size, part in zip(sizes, resident, strict=True)]
    kept: tuple[float, float] = (min(streamed[0], share.kept), min(streamed[1], max(share.kept - streamed[0], 0)))
    if each.model.access_pattern != "leaks":  # evenly, see `residency.choose_kept`
        part = min(share.kept, sum(streamed)) / max(sum(streamed), 1)
        kept = (part * streamed[0], part * streamed[1])
    dense, experts = (_Weights(resident[index], kept[index], streamed[index] - kept[index]) for index in range(2))
    return dense, experts


def plan(policy: Policy, catalogue: Catalogue, room: int | None) -> Division:
    """Plan a boot by `policy` with `room` bytes. Files that cannot be read count as nothing."""
    return budget.divide(policy, catalogue, room)
