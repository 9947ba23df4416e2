"""Two images, by their measurements: which launch values are others, and which rules then fail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from appliance.attestation.case.measurements import Measurements
from appliance.client.rollout.refusals import Denial

OTHER_IMAGE = "NEW's image, which has another policy in it"


@dataclass(frozen=True)
class ImageChange:
    """One value that hardware measures. `kept`: shapes of the new image whose value the old one has
    as well."""

    platform: str
    rule: str  # on which a verifier with the old measurements refuses
    kept: int
    others: int

    def as_json(self) -> dict[str, Any]:
        """Return the change for JSON output."""
        return {"platform": self.platform, "rule": self.rule, "kept": self.kept, "others": self.others}


def compare(old: Measurements, new: Measurements) -> list[ImageChange]:
    """Return the values in which the new image has any that the old one does not have."""
    found = [ImageChange(platform, rule, len(after & before), len(after - before))
             for platform, rule, before, after in _values(old, new)]
    return [each for each in found if each.others]


def _values(old: Measurements, new: Measurements) -> Iterator[tuple[str, str, frozenset[bytes], frozenset[bytes]]]:
    yield "sev-snp", "measurement", old.sev_snp_digests(), new.sev_snp_digests()
    yield "tdx", "mrtd", old.tdx_mrtds(), new.tdx_mrtds()
    before, after = old.tdx_rtmrs(), new.tdx_rtmrs()
    for number in sorted(before.keys() & after.keys()):
        yield "tdx", f"rtmr{number}", before[number], after[number]
    registers, others = old.tpm_pcrs(), new.tpm_pcrs()
    for number in sorted(registers.keys() & others.keys()):
        yield "tpm", f"pcr{number}", registers[number], others[number]


def refusals(old: Measurements, new: Measurements, policy_sha384: str) -> Iterator[Denial]:
    """Yield who refuses machines with the new image. `policy_sha384`: of the policy to come."""
    if new.policy_sha384 not in (None, policy_sha384):
        yield Denial("clients with NEW", OTHER_IMAGE, ("measured-policy",), "build and predict an image with NEW",
                     breaks=True)
    if old.image == new.image:
        yield from _of_shapes(old, new)
    else:
        for platform, rules in _by_platform(compare(old, new)):
            yield Denial("clients and brokers with OLD's measurements", f"{platform} machines with NEW's image",
                         rules, "give them NEW's measurements, signed by the builder", breaks=True)
    if old.policy_sha384 != new.policy_sha384 and new.policy_sha384 is not None:
        yield Denial("the boot of NEW's image", "any policy but its own", ("policy",),
                     "build an image again for each change of the policy")


def _of_shapes(old: Measurements, new: Measurements) -> Iterator[Denial]:
    """Yield who refuses machines of one image: other shapes of them are allowed than before, or
    another firmware, of which none is kept."""
    gone = {each.platform for each in compare(old, new) if not each.kept}
    for platform, rules in _by_platform(compare(old, new)):
        yield Denial("clients and brokers with OLD's measurements", f"{platform} machines that only NEW allows", rules,
                     "give them NEW's measurements before such machines start", breaks=platform in gone)
    for platform, rules in _by_platform(compare(new, old)):
        yield Denial("clients and brokers with NEW's measurements", f"{platform} machines that only OLD allows",
                     rules, "end such machines first, or allow their shape in NEW's", breaks=True)


def _by_platform(changes: list[ImageChange]) -> Iterator[tuple[str, tuple[str, ...]]]:
    rules: dict[str, list[str]] = {}
    for each in changes:
        rules.setdefault(each.platform, []).append(each.rule)
    return ((platform, tuple(found)) for platform, found in rules.items())
