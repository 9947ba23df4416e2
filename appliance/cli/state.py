"""`appliance state DISK`: check a state disk from its first record to its last, and print its audit
log."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from appliance.audit import periods
from appliance.auditor import unsealing
from appliance.auditor.statedisk import examine, followed
from appliance.codec.printable import quantity
from appliance.errors import StateError
from appliance.keys.providers import FileKey, Secret
from appliance.state import snapshot
from appliance.state.disk import derive
from appliance.state.frames import AUDIT, Slot


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("disk", metavar="DISK", type=Path, help="the disk, or a copy of it; it is only read")
    parser.add_argument("--key", metavar="FILE", type=Path, required=True, help="its key, as `model key` writes one")
    parser.add_argument("--json", action="store_true", help="print a summary as JSON instead of the audit log")
    parser.add_argument("--period-keys", metavar="OUT", type=Path,
                        help="write there the keys that open sealed records (privacy.retention.audit), as far as they "
                        "are not destroyed")
    parser.epilog = ("exit codes: 0 every record that the disk's slots know of authenticates, 2 it cannot be read, or "
                     "was altered, cut, or written to by two appliances at once")


def run(args: argparse.Namespace) -> int:
    """Print the log on standard output, the summary on standard error; or the summary alone as
    JSON."""
    with FileKey(args.key).key() as key:
        disk, slot, frames = examine(args.disk, key)
        if args.period_keys is not None:
            _write_keys(args.period_keys, disk, slot, key)
    lines, rest = [frame.payload for frame in frames if frame.kind == AUDIT], followed(args.disk, frames)
    if args.json:
        print(json.dumps({"disk": disk.hex(), "epoch": slot.epoch, "records": len(frames), "audit_lines": len(lines),
                          "chain_sha256": frames[-1].chain.hex() if frames else None, "followed": rest}))
        return 0
    for line in lines:
        sys.stdout.write(line.decode("ascii", "backslashreplace"))
    print(f"disk {disk.hex()}, epoch {slot.epoch}: {quantity(len(frames), 'authentic record')}", file=sys.stderr)
    if rest:
        print("note: the bytes after the last of them are not a record: it was being written, or somebody altered the "
              "log behind what the disk's slots know of", file=sys.stderr)
    return 0


def _write_keys(path: Path, disk: bytes, slot: Slot, key: Secret) -> None:
    """Write the keys of the periods whose seeds the disk still has, for `appliance audit open`."""
    found = {str(number): derive(key, disk, periods.PURPOSE + seed).hex()
             for number, seed in snapshot.read(slot.saved)[1]}
    text = json.dumps({"format": unsealing.KEYS_FORMAT, "log": disk.hex(), "periods": found}) + "\n"
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
            file.write(text)
    except OSError as error:
        raise StateError(f"{path}: {error.strerror}", hint="name a file that is not there yet") from None
