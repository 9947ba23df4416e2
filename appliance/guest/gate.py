"""Whether the kernel has the gate's ACPI tables (image/gate/gate.c). No bytes of a table are
interpreted here.

A machine that starts the image's EFI program has them. A start that loads the kernel without
firmware has the host's tables: it is for tests and trials, and no confidential platform starts so.
"""

from __future__ import annotations

import json
from pathlib import Path

TABLES = Path("/sys/firmware/acpi/tables")
FIRMWARE = Path("/sys/firmware/efi")  # there after a boot by UEFI
CONFIDENTIAL = (Path("/dev/sev-guest"), Path("/dev/tdx_guest"))
BUILT = Path(__file__).with_name("gate.json")  # the builder's
_MAKER = slice(10, 24)  # OEM id and table id, in a table's header (ACPI 6.5, section 5.2.6)
_OURS = b"APPL  GATE    "
_NO_HEADER = "FACS"


def look(tables: Path = TABLES, firmware: Path = FIRMWARE, confidential: tuple[Path, ...] = CONFIDENTIAL,
         built: Path = BUILT) -> str:
    """Say which tables the kernel has. Raises OSError if they are the host's on a machine that must
    have the gate's."""
    names = sorted(path.name for path in tables.iterdir() if path.is_file()) if tables.is_dir() else []
    foreign = [name for name in names if name != _NO_HEADER and (tables / name).read_bytes()[_MAKER] != _OURS]
    digest = json.loads(built.read_bytes())["sha256"]
    if names and not foreign:
        return f"ACPI tables {', '.join(names)}, by gate sha256:{digest}"
    if firmware.exists() or any(path.exists() for path in confidential):
        raise OSError(f"the host's ACPI tables are in force: {', '.join(foreign) or 'none is there'}; needed: those of "
                      f"gate sha256:{digest}, which the image's EFI program starts with")
    return f"not in force, as no firmware started the image: the host's ACPI tables are {', '.join(foreign) or 'none'}"
