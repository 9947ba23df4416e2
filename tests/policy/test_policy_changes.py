"""Two policies compared: each field shows in the digest and in the plan, or in neither; directions are what judges
do."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.policy import policy_digest
from appliance.policy.changes import compare
from appliance.policy.changes.directions import BLOCKS, FIELDS
from appliance.policy.enforcement import places
from appliance.policy.explaining.checking import check
from appliance.policy.schema import Policy, frozen
from appliance.policy.schema.kinds import Kind, Version
from appliance.policy.schema.platform import PRODUCTS
from tests.attestation.test_snp_validate import CASES
from tests.support.policies import BASE, every_field, in_schema, leaves, two_values, valid, with_lines

LEAVES = [(place, kind) for place, kind in leaves() if not isinstance(kind, Version)]
OPPOSITE = {"loosens": "tightens", "tightens": "loosens", "changes": "changes"}


def test_every_field_has_a_direction() -> None:
    """And so has every block that may come or go; there are no others."""
    assert set(FIELDS) == {place for place, shape in places().items() if shape.kind is not None}
    table = frozen.table(frozen.LATEST)
    assert set(BLOCKS) == {place for place, shape in places().items() if shape.block is not None
                           and table[place]["block"] in ("optional", "labelled", "map")}


def _pair(place: str, kind: Kind) -> tuple[Policy, Policy]:
    one, two = (every_field(override=(place, kind.parse(value))) for value in two_values(kind))
    return one, two


@pytest.mark.parametrize(("place", "kind"), LEAVES, ids=lambda each: each if isinstance(each, str) else "")
def test_a_field_that_differs_is_the_one_change(place: str, kind: Kind) -> None:
    """As the digest has it; the way back is the opposite."""
    one, two = _pair(place, kind)
    found = compare.changes(one, two)
    assert {place} == {each.place for each in found}
    if place != "tenants.commitment":  # which stands for tenants, and never beside them
        assert policy_digest(one) != policy_digest(two)
    assert all(each.before != each.after and each.meaning for each in found)
    back = compare.changes(two, one)
    assert [OPPOSITE[each.direction] for each in found] == [each.direction for each in back]
    assert [] == compare.changes(one, _pair(place, kind)[0])


@pytest.mark.parametrize("place", sorted(BLOCKS))
def test_a_block_that_comes_or_goes_is_one_change(place: str) -> None:
    """A labelled one shows as one that goes and one that comes; a map's block never goes."""
    if "map" == frozen.table(frozen.LATEST)[place]["block"]:
        return
    if places()[place].labelled:
        found = compare.changes(every_field(), every_field(relabel=place))
        assert [place, place] == [each.place for each in found]
        assert {(None, "a block"), ("a block", None)} == {(each.before, each.after) for each in found}
        assert policy_digest(every_field()) != policy_digest(every_field(relabel=place))


def test_what_means_the_same_is_no_change() -> None:
    """Comments, defaults that are written out, the order of blocks and of lists."""
    text = in_schema(2)
    blocks = text.split("\n}\n")
    other = "# a comment\n" + "\n}\n".join([*blocks[-2:-1], *blocks[:-2], ""])
    written = with_lines("limits", "prompt_tokens = 2048", with_lines("tee", 'plaintext_budget = "8MiB"', other))
    assert [] == compare.changes(valid(text), valid(written))
    assert policy_digest(valid(text)) == policy_digest(valid(written))


def test_another_schema_shows_what_it_reads() -> None:
    """`schema = 2` alone changes what defaults mean: each such field is named beside the version."""
    found = {each.place: each for each in compare.changes(valid(BASE), valid(in_schema(2)))}
    assert ("1", "2") == (found["appliance.schema"].before, found["appliance.schema"].after)
    assert "tightens" == found["service.session_binding"].direction
    assert "tightens" == found["tee.evidence.sev_snp.products"].direction


def _demanding(own: dict[str, Any]) -> Policy:
    """A policy with these requirements of SEV-SNP reports."""
    base = valid(in_schema(2))
    common = {name: own[name] for name in ("debug", "migration", "smt", "vmpl") if name in own}
    snp = {name: value for name, value in own.items() if name not in common}
    evidence = base.tee.evidence
    evidence = evidence.model_copy(update={**common, "sev_snp": evidence.sev_snp.model_copy(
        update={"products": PRODUCTS, **snp})})
    return base.model_copy(update={"tee": base.tee.model_copy(update={"evidence": evidence})})


PAIRS = [(refusing, taking) for number, (report, refusing, rules) in enumerate(CASES) if rules
         for other, taking, none in CASES if report == other and not none
         and len(set(refusing) ^ set(taking)) <= 1 and refusing != taking]


@pytest.mark.parametrize(("refusing", "taking"), PAIRS)
def test_a_change_after_which_a_report_is_taken_loosens(refusing: dict[str, Any], taking: dict[str, Any]) -> None:
    """By reports that the judge of SEV-SNP refuses under one policy and takes under the other."""
    directions = {each.direction for each in compare.changes(_demanding(refusing), _demanding(taking))}
    assert {"loosens"} == directions


def test_there_are_such_pairs() -> None:
    """Of most rules."""
    assert len(PAIRS) >= 18


WORDS = [  # field, before, after, direction
    ("tee.evidence.sev_snp.min_api", '"1.9"', '"1.10"', "tightens"),
    ("tee.evidence.tdx.tcb_grace", None, '"10d"', "loosens"),
    ("tee.evidence.tdx.mr_seam", None, f'["{"0a" * 48}"]', "tightens"),
    ("tee.evidence.tdx.xfam", '"0x00000000000000e7"', '"0x00000000000602e7"', "loosens"),
    ("tee.evidence.tdx.min_tee_tcb_svn", f'"05{"00" * 15}"', f'"0600{"00" * 14}"', "tightens"),
    ("limits.tokens_per_day", None, "100000", "tightens"),
    ("limits.answer_timeout", '"10s"', None, "loosens"),
    ("privacy.redaction.detectors", '["email", "phone"]', '["email", "iban"]', "loosens"),
    ("privacy.retention.audit", '"10d"', '"20d"', "changes"),
    ("service.operator_may_set", None, '["log_sink"]', "loosens"),
]


@pytest.mark.parametrize(("place", "before", "after", "direction"), WORDS)
def test_directions_that_are_easily_wrong(place: str, before: str | None, after: str | None, direction: str) -> None:
    """Versions are numbers, absent stands for no limit, a floor of bytes is one of each byte."""
    *around, name = place.split(".")

    def written(value: str | None) -> Policy:
        inside = "" if value is None else f"{name} = {value}"
        for block in reversed(around[1:]):
            inside = f"{block} {{\n{inside}\n}}"
        checked = check(with_lines(around[0], inside, in_schema(2).replace("audit {\n}", 'audit {\nsink = "state"\n}\n'
                        'state {\ndevice = "/dev/vdb"\nkey {\nprovider = "ephemeral"\n}\n}')))
        assert checked.policy is not None, checked.diagnostics[0]
        return checked.policy

    (found,) = compare.changes(written(before), written(after))
    assert (place, direction) == (found.place, found.direction)
