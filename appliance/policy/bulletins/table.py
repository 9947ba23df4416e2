"""The bulletins on SEV-SNP and TDX that ask for something, and those that no report can show.

No text of AMD's could be read for this table: its site was out of reach. Each number was found in
public projects that quote a bulletin, and a row names them. Intel's row rests on Intel's own
repository for the modules, and on others for the security versions. Numbers that were found in one
place only say so by one source.

Mitigation bits are AMD's to define, line by line. Bit 0 has no source. Of bit 3 AMD-SB-3023 said
that it stands for CVE-2025-48514, and AMD's engineer on the kernel's list that it does not. So no
row asks for either, although every patched machine shows both.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType

from appliance.policy.bulletins.bulletin import Bulletin
from appliance.policy.schema.platform import ISSUED_AS

SOURCES: Mapping[str, str] = MappingProxyType({
    "aleph": "floors of aleph-vm's verifier by model and stepping, August 2026",
    "atakit": "atakit's registry of policies: AMD-SB-3020 bit 1, AMD-SB-3016 bit 2, AMD-SB-3030 and AMD-SB-3034 bit 4, "
              "for Milan",
    "badram": "two public verifiers that name AMD-SB-3015: 0x17 on Milan, 0x16 on Genoa",
    "bitcoinpir": "the floor of BitcoinPIR's client for Milan, October 2026: bit 1 for AMD-SB-3020",
    "ccf": "microsoft/CCF, issue 6812, which quotes AMD-SB-3019",
    "fwupd": "fwupd, whose test of EntrySign takes 0x0AA00219 for the fix on Zen 4c",
    "google": "Google Cloud's security bulletins GCP-2026-019, -021 and -031: that it is so, and when; no numbers",
    "intel": "intel/confidential-computing.tdx.tdx-module.binaries, README: 1.5.24 for 4th and 5th Generation Xeon, "
             "1.5.25 for Xeon 6 with E-cores, 2.0.14",
    "lkml": "Linux kernel mailing list, March and April 2026: AMD's engineer on SNP_VERIFY_MITIGATION and bit 3",
    "nebula": "the firmware policy of a Nebula release: SNP 0x1B on Milan for AMD-SB-3023",
    "pi-tee": "reviews in ariofrio/pi-tee, which read the bulletins on 2026-10-08",
    "realms": "a plan of August 2026 that quotes AMD-SB-3034: SNP 0x1c on Genoa, which pi-tee says was withdrawn",
    "sentinel": "the verifier of a public subnet: SNP 0x1D on Milan for AMD-SB-3030",
    "tdx-review": "arXiv 2602.11434, as quoted: mended from 1.5.24, 1.5.25 and 2.0.14 on; module release notes, as "
                  "quoted: minor version 0x0D is 1.5.24",
    "trace-spec": "agentrust-io/trace-spec: AMD-SB-3016 asks for SNP 0x1B on Milan and Genoa, and for bit 2",
    "xca": "xca-attacks/xca-attacks.github.io, by the authors of BreakFAST, Fabricked and Staleus",
})

_BADRAM, _ENTRYSIGN, _RMPOCALYPSE, _IOMMU = "BadRAM", "EntrySign", "RMPocalypse", "CVE-2023-20585, IOMMU writes"
_STACKWARP, _BREAKFAST, _FABRICKED, _STALEUS = "StackWarp", "BreakFAST", "Fabricked", "Staleus"
_BIT_3 = "its bit 3 is not this one's, by AMD's engineer: the security version tells"
_NO_NUMBER = "no number or bit for this line was found"
_WITHDRAWN = "AMD took its security versions back on 2026-09-24; no number or bit for this line was found"

TABLE: tuple[Bulletin, ...] = (
    Bulletin("AMD-SB-3015", _BADRAM, "milan", "2024-12", "secondary", ("badram",), {"snp": 23}, flags=("alias_check",)),
    Bulletin("AMD-SB-3015", _BADRAM, "genoa", "2024-12", "secondary", ("badram",), {"snp": 22}, flags=("alias_check",)),
    Bulletin("AMD-SB-3015", _BADRAM, "turin", "2024-12", "secondary", ("badram",), flags=("alias_check",),
             remark="no version for Turin was found"),
    Bulletin("AMD-SB-3019", _ENTRYSIGN, "milan", "2025-02-03", "secondary", ("ccf", "aleph"), {"snp": 24},
             {"Milan": 219, "Milan-X": 68}),
    Bulletin("AMD-SB-3019", _ENTRYSIGN, "genoa", "2025-02-03", "secondary", ("ccf", "pi-tee", "aleph", "fwupd"),
             {"snp": 23},
             {"Genoa": 84, "Genoa-X": 79, "Zen 4c": 25}),
    Bulletin("AMD-SB-3020", _RMPOCALYPSE, "milan", "2025-10-14", "secondary", ("atakit", "bitcoinpir"),
             mitigations=0x2),
    Bulletin("AMD-SB-3020", _RMPOCALYPSE, "genoa", "2025-10-14", "secondary", ("pi-tee",), {"snp": 27},
             {"Genoa": 86, "Genoa-X": 81}),
    Bulletin("AMD-SB-3020", _RMPOCALYPSE, "turin", "2025-10-14", "secondary", ("pi-tee",), {"snp": 4}, {"Turin": 80}),
    Bulletin("AMD-SB-3027", _STACKWARP, "genoa", "2026-01", "secondary", ("pi-tee",),
             microcode={"Genoa": 86, "Genoa-X": 81}),
    Bulletin("AMD-SB-3027", _STACKWARP, "turin", "2026-01", "secondary", ("pi-tee",), microcode={"Turin": 81}),
    Bulletin("AMD-SB-3023", "CVE-2025-48514", "milan", "2026-03", "secondary", ("nebula", "lkml"), {"snp": 27},
             remark=_BIT_3),
    Bulletin("AMD-SB-3016", _IOMMU, "milan", "2026-04-14", "secondary", ("trace-spec", "atakit", "google"), {"snp": 27},
             mitigations=0x4, remark="the bit is the host's part, which its kernel does"),
    Bulletin("AMD-SB-3016", _IOMMU, "genoa", "2026-04-14", "secondary", ("trace-spec", "google"), {"snp": 27},
             mitigations=0x4, remark="the bit is the host's part, which its kernel does"),
    Bulletin("AMD-SB-3034", _FABRICKED, "milan", "2026-04-14", "secondary", ("atakit", "google", "xca"),
             mitigations=0x10, remark="AMD took its security versions back on 2026-09-24"),
    Bulletin("AMD-SB-3034", _FABRICKED, "genoa", "2026-04-14", "secondary", ("realms", "pi-tee", "google", "xca"),
             remark=_WITHDRAWN),
    Bulletin("AMD-SB-3034", _FABRICKED, "turin", "2026-04-14", "secondary", ("pi-tee", "google", "xca"),
             remark=_WITHDRAWN),
    Bulletin("AMD-SB-3030", _BREAKFAST, "milan", "2026-05-12", "secondary", ("sentinel", "atakit", "google", "xca"),
             {"snp": 29}, mitigations=0x10, remark="the sources disagree: one has the version, another the bit"),
    Bulletin("AMD-SB-3030", _BREAKFAST, "genoa", "2026-05-12", "secondary", ("google", "xca"), remark=_NO_NUMBER),
    Bulletin("AMD-SB-3030", _BREAKFAST, "turin", "2026-05-12", "secondary", ("google", "xca"), remark=_NO_NUMBER),
    Bulletin("AMD-SB-3039", _STALEUS, "genoa", "2026-08", "secondary", ("xca",), remark=_NO_NUMBER),
    Bulletin("AMD-SB-3039", _STALEUS, "turin", "2026-08", "secondary", ("xca",), remark=_NO_NUMBER),
    Bulletin("INTEL-SA-01397", "CVE-2025-30513, a migratable TD made debuggable", "tdx", "2026-02-10", "secondary",
             ("tdx-review", "intel"), tee_tcb_svn=(0x0D, 0x01), remark="of modules 1.5; those of 2.0 count anew"),
)


_ROWS: ContextVar[tuple[Bulletin, ...]] = ContextVar("rows", default=TABLE)


def use(rows: tuple[Bulletin, ...]) -> None:
    """Take a feed's rows in the place of the table, for this run of a command."""
    _ROWS.set(rows)


def of(line: str) -> tuple[Bulletin, ...]:
    """Return the rows on a product line, in the table's order. Siena has Genoa's firmware."""
    return tuple(each for each in _ROWS.get() if each.line == ISSUED_AS.get(line, line))
