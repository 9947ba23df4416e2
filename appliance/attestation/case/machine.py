"""The machine that evidence is of, and the list of machines that a policy takes.

A genuine report is some genuine chip's, and the key of any of them may have been taken out. So a
policy can demand certain machines, by names that the vendor's hardware vouches for. The list's
file and its signature are the business of `signed/machines`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Final

from appliance.attestation.findings import Finding, judged

RULE: Final = "machine"
CHIP, PPID, INSTANCE, EK = "chip-id", "ppid", "platform-instance-id", "ek-sha256"
KINDS: Final[Mapping[str, int]] = MappingProxyType({CHIP: 64, EK: 32, INSTANCE: 16, PPID: 16})  # bytes of a name


@dataclass(frozen=True, order=True)
class MachineId:
    """The name of one machine, of a kind.

    SEV-SNP has CHIP_ID (64 bytes; Turin's 8 are followed by zeros). A PCK certificate has PPID and
    platform instance id (16). A TPM has its endorsement key: SHA-256 of the SubjectPublicKeyInfo
    (32).
    """

    kind: str
    value: bytes

    def __str__(self) -> str:
        return f"{self.kind} {self.value.hex()}"


@dataclass(frozen=True)
class Custody:
    """A note on who holds a machine and where, and the last moment at which its entry counts. None:
    it counts until a newer list leaves it out."""

    note: str
    not_after: datetime | None = None

    def counts(self, at: datetime | None) -> bool:
        """Whether the entry counts at a time. Without a time, one that ends does not."""
        return self.not_after is None or (at is not None and at <= self.not_after)


@dataclass(frozen=True)
class MachineList:
    """A list whose signature holds, and its version."""

    version: int
    machines: Mapping[MachineId, Custody]


Names = tuple[MachineId, ...] | str  # each names the one machine; or why none is shown


def judge(names: Names, listed: MachineList | None, at: datetime | None) -> Finding:
    """Judge the rule `machine` for a policy that demands listed machines.

    Fails for a machine that is not listed, or no longer, and where no name is shown. It is not
    checked where no list is at hand, which a verifier takes for a refusal.
    """
    if isinstance(names, str):
        return judged(RULE, False, f"cannot be shown: {names}")
    told = " and ".join(map(str, names))
    if listed is None:
        return Finding(RULE, "not checked", f"{told}: the list of machines that the policy demands is not at hand")
    found = [(each, listed.machines[each]) for each in names if each in listed.machines]
    for each, custody in found:
        if custody.counts(at):
            return judged(RULE, True, f"{each}, held by: {custody.note}; list of version {listed.version}")
    if found:
        return judged(RULE, False, f"{found[0][0]}: its entry ended on {found[0][1].not_after:%Y-%m-%dT%H:%M:%SZ}")
    return judged(RULE, False, f"{told}: not among the {len(listed.machines)} machines of the list of version "
                  f"{listed.version}; if it is yours, add it: appliance machines add")
