"""Changes of a policy's requirements, one word each, for a trial on a fleet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from appliance.errors import PolicyError
from appliance.policy.schema.platform import PRODUCTS, LineTcb, Requirements

Update = Literal["standard", "early"]
COMPONENTS = ("bootloader", "tee", "snp", "microcode", "fmc")
MITIGATIONS = ("launch_mitigations", "current_mitigations")
FORMS = ("LINE=out", "LINE=in", "floor.LINE.COMPONENT=NUMBER", "floor.LINE.launch_mitigations=0xBITS",
         "evaluation=NUMBER", "advisory.NAME=accepted", "smt=allowed", "smt=refused")
_MOST = 255


def changed(wanted: Requirements, words: Sequence[str]) -> Requirements:
    """Requirements with every change made, in their order. Raises PolicyError with the word and
    what is allowed."""
    for word in words:
        name, _, value = word.partition("=")
        wanted = _changed(wanted, name.strip().lower(), value.strip(), word)
    return wanted


def _changed(wanted: Requirements, name: str, value: str, word: str) -> Requirements:
    snp, tdx = wanted.sev_snp, wanted.tdx
    if name in PRODUCTS and value in ("out", "in"):
        rest = tuple(each for each in snp.products if each != name)
        return _with(wanted, "sev_snp", products=rest if value == "out" else (*rest, name))
    if name.startswith("floor.") and name.count(".") == 2:
        _, line, part = name.split(".")
        return _with(wanted, "sev_snp", floors=_floors(snp.floors, line, part, value, word))
    if name == "evaluation":
        return _with(wanted, "tdx", min_evaluation_number=_number(value, 2**31, word))
    if name.startswith("advisory.") and value == "accepted":
        named = name.removeprefix("advisory.").upper()
        return _with(wanted, "tdx", accepted_advisories=(*tdx.accepted_advisories, named))
    if name == "smt" and value in ("allowed", "refused"):
        allowed = value == "allowed"
        return wanted.model_copy(update={"smt": allowed, "smt_of_either": True})
    raise _unknown(word)


def _with(wanted: Requirements, block: str, **fields: object) -> Requirements:
    return wanted.model_copy(update={block: getattr(wanted, block).model_copy(update=fields)})


def _floors(floors: Sequence[LineTcb], line: str, part: str, value: str, word: str) -> tuple[LineTcb, ...]:
    """The floors with one part of one line's set; a line without a block gets one."""
    if line not in PRODUCTS or part not in (*COMPONENTS, *MITIGATIONS):
        raise _unknown(word)
    if part in COMPONENTS:
        to: object = _number(value, _MOST, word)
    else:
        to = hex(_number(value, 2**64 - 1, word))
    there = {each.product: each for each in floors}
    there[line] = there.get(line, LineTcb(product=line)).model_copy(update={part: to})
    return tuple(there.values())


def _number(value: str, most: int, word: str) -> int:
    try:
        found = int(value, 16) if value.startswith("0x") else int(value)
    except ValueError:
        found = -1
    if not 0 <= found <= most:
        raise PolicyError(f"--if {word}: expected a number from 0 to {most}, found {value!r}", code="what-if",
                          hint="decimal, or hex after 0x")
    return found


def _unknown(word: str) -> PolicyError:
    return PolicyError(f"--if {word}: not a change that is known", code="what-if", hint=f"known: {', '.join(FORMS)}; "
                       f"LINE is one of {', '.join(PRODUCTS)}, COMPONENT one of {', '.join(COMPONENTS)}")


