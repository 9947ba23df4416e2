"""A row of the table of bulletins, and the models of AMD's product lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from types import MappingProxyType
from typing import Literal, NamedTuple

Standing = Literal["vendor", "secondary"]


class Model(NamedTuple):
    """CPUs whose patch levels of microcode count together."""

    line: str
    family: int  # as CPUID and reports of version 3 and later say it
    models: range
    stepping: int | None = None  # None: any


# Models whose fixes have patch levels of their own: AMD-SB-3019 names them by stepping.
MODELS: Mapping[str, Model] = MappingProxyType({
    "Milan": Model("milan", 0x19, range(0x10), 1), "Milan-X": Model("milan", 0x19, range(0x10), 2),
    "Genoa": Model("genoa", 0x19, range(0x10, 0x20), 1), "Genoa-X": Model("genoa", 0x19, range(0x10, 0x20), 2),
    "Zen 4c": Model("siena", 0x19, range(0xA0, 0xB0)),  # Bergamo and Siena
    "Turin": Model("turin", 0x1A, range(0x10)),  # not Turin Dense, of which no patch level was found
})


@dataclass(frozen=True)
class Bulletin:
    """A maker's bulletin, on one product line.

    `line`: a line of AMD's by its keys (Siena's models have Genoa's), or "tdx". `lowest`: security
    versions by component, in the words of `min_tcb`. `microcode`: patch levels by model.
    `mitigations`: bits of the mitigation vectors. `flags`: fields of `sev_snp` that must be true.
    `tee_tcb_svn`: the first components of TEE_TCB_SVN. A row without any of them is about something
    that no report shows.

    `first_seen`: the day or month when it was public. `checked`: whether the maker's own text was
    read, or only what others say of it. `sources` are keys of `SOURCES`, or texts of a feed.
    `enforced_from`: the day from which a feed's publisher wants it met; a row of ours has none.
    """

    id: str
    attack: str
    line: str
    first_seen: str
    checked: Standing
    sources: tuple[str, ...]
    lowest: Mapping[str, int] = field(default_factory=dict)
    microcode: Mapping[str, int] = field(default_factory=dict)
    mitigations: int = 0
    flags: tuple[str, ...] = ()
    tee_tcb_svn: tuple[int, ...] = ()
    remark: str = ""
    enforced_from: date | None = None

    @property
    def name(self) -> str:
        """Its number and the attack."""
        return f"{self.id} ({self.attack})"

    @property
    def shows(self) -> bool:
        """Whether a report can show that a machine is mended."""
        return bool(self.lowest or self.microcode or self.mitigations or self.flags or self.tee_tcb_svn)

    def floor(self, line: str) -> dict[str, int]:
        """Return what `min_tcb` has to say for a line: microcode by the lowest of its models, if
        all of them are known."""
        models = [name for name, model in MODELS.items() if model.line == line]
        known = [self.microcode[name] for name in models if name in self.microcode]
        return {**self.lowest, **({"microcode": min(known)} if known and len(known) == len(models) else {})}


def model_of(cpuid: tuple[int, int, int] | None) -> str | None:
    """Return the name of a model by CPUID's family, model and stepping; None if not known."""
    if cpuid is None:
        return None
    family, number, stepping = cpuid
    return next((name for name, model in MODELS.items() if model.family == family and number in model.models
                 and model.stepping in (None, stepping)), None)


def bits(mask: int) -> str:
    """Name the bits of a mask: `bit 1`, `bits 1 and 4`."""
    numbers = [str(number) for number in range(mask.bit_length()) if mask >> number & 1]
    return f"bit{'s' * (len(numbers) > 1)} {' and '.join(numbers)}"
