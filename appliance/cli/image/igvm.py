"""`appliance image igvm`: what an IGVM file lays out, and the launch digest that it fixes."""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

from appliance.codec.printable import quantity
from appliance.imaging.igvm import rows
from appliance.imaging.igvm.launch import Launch


def add_arguments(actions: Any) -> None:
    """Declare the action."""
    summary = "read an IGVM file: the SEV-SNP launch that it lays out, and its digest"
    action = actions.add_parser("igvm", help=summary, description=summary)
    action.add_argument("file", metavar="FILE", type=Path, help="the file, by whatever tool it was written")
    action.add_argument("--json", action="store_true", help="print it as JSON")
    action.epilog = ("it says nothing of what the firmware boots: "
                     "`appliance image predict DIR --igvm FILE --firmware FILE` does")


def _igvm(args: argparse.Namespace) -> int:
    found = rows.read(args.file)
    told = _described(found)
    if args.json:
        print(json.dumps(told, indent=2))
        return 0
    print("\n".join((
        f"launch digest   {told['launch_digest']}", f"guest policy    {told['guest_policy'] or 'none'}",
        f"firmware        {told['firmware_bytes']} bytes, SHA-256 {told['firmware_sha256']}",
        f"pages           {quantity(len(found.pages), 'page')}, {told['unmeasured']} of them unmeasured",
        f"virtual CPUs    {told['vcpus']}, signature {told['cpu_signature']}, features {told['guest_features']}")))
    return 0


def _described(found: Launch) -> dict[str, Any]:
    """Return the launch as plain values."""
    firmware = found.firmware()
    return {
        "launch_digest": found.digest.hex(), "guest_policy": None if found.policy is None else f"{found.policy:#x}",
        "firmware_bytes": len(firmware), "firmware_sha256": hashlib.sha256(firmware).hexdigest(),
        "pages": len(found.pages), "unmeasured": sum(each.unmeasured for each in found.pages),
        "vcpus": len(found.save_areas), "cpu_signature": f"{found.signature:#x}",
        "guest_features": f"{found.guest_features:#x}"}


ACTIONS = {"igvm": _igvm}
