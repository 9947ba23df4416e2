"""The experts of a model, from its header and the card of its family."""

from __future__ import annotations

from appliance.engine.families.architecture import Mixture
from appliance.engine.families.card import Experts, Family
from appliance.engine.families.reader import HeaderReader
from appliance.errors import FormatError, UnsupportedError

MOST, MOST_USED = 1024, 64  # experts of a layer, and of a row
SCORES = ("softmax", "sigmoid", "chosen")  # `expert_gating_func` counts them from 1


def mixture(reader: HeaderReader, family: Family, wide: int, layers: int) -> Mixture | None:
    """Read the sizes of experts; None for a model without. `wide`: floats of a hidden row where the
    file tells of none for experts. Raises FormatError and UnsupportedError as the reader does."""
    card, name = family.experts, family.name
    if card is None:
        return None
    count = reader.integer("expert_count", 1 if card.always else 0, MOST, None if card.always else 0)
    if count == 0:
        return None
    used = reader.integer("expert_used_count", 1, min(count, MOST_USED))
    width = reader.integer("expert_feed_forward_length", 1, 1 << 20, wide)
    shared = _shared(reader, card, width)
    for key, value in (("expert_feed_forward_length", width), ("expert_shared_feed_forward_length", shared)):
        if value % 32:
            raise UnsupportedError(f"{name}.{key} is {value}; allowed: a multiple of 32")
    _expect_score(reader, card)
    groups, groups_used = _groups(reader, card, count, used)
    return Mixture(
        count, used, width, card.score, reader.flag("expert_weights_norm", card.normalised) or card.score == "chosen",
        reader.real("expert_weights_scale", 0.0, 1e6, 1.0) or 1.0, groups, groups_used, shared,
        reader.integer("leading_dense_block_count", 0, layers - 1, 0))


def _shared(reader: HeaderReader, card: Experts, width: int) -> int:
    """Floats of a hidden row of the shared expert: as the file says, or as so many experts; 0 without
    one."""
    if card.shared is None:
        return 0
    several = reader.integer("expert_shared_count", 0, 64, 0)
    return reader.integer("expert_shared_feed_forward_length", 0, 1 << 20, 0) or several * width


def _expect_score(reader: HeaderReader, card: Experts) -> None:
    """Raise UnsupportedError where the file names another function of scores than its family has."""
    own = SCORES.index(card.score) + 1
    said = reader.integer("expert_gating_func", 0, 1 << 20, own)
    if said not in (0, own):
        raise UnsupportedError(f"{reader.family}.expert_gating_func is {said}; this version runs only: 0, {own}",
                               hint=f"experts of this family have the score {card.score}")


def _groups(reader: HeaderReader, card: Experts, count: int, used: int) -> tuple[int, int]:
    """Groups of experts, and those of a row."""
    groups = reader.integer("expert_group_count", 0, count, 1) or 1
    groups_used = reader.integer("expert_group_used_count", 0, groups, groups) or groups
    if groups_used == groups:
        return 1, 1
    if card.score != "sigmoid":
        raise UnsupportedError(f"{reader.family}.expert_group_count is {groups}; "
                               f"allowed with the score {card.score}: 1")
    if count % groups or count // groups < 2 or groups_used * (count // groups) < used:
        raise FormatError(f"{reader.family}.expert_group_count is {groups}, and {groups_used} are used: {used} of "
                          f"{count} experts cannot be chosen so")
    return groups, groups_used
