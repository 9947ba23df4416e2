"""The drills, one row each: the incident, and what refuses from then on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from appliance.drills import disks, evidence, keys
from appliance.drills.scene import Scene


@dataclass(frozen=True)
class Drill:
    """One rehearsal. `refuses`: the outcome, in a sentence."""

    incident: str
    play: Callable[[Scene], None]
    refuses: str

    def guide(self, name: str) -> str:
        """The page that says what to do in earnest."""
        return f"docs/guides/incidents/{name}.md"


DRILLS: dict[str, Drill] = {
    "leaked-api-key": Drill("a tenant's API key is in other hands", keys.api_key,
                            "the running appliance refuses the key, and every older list"),
    "leaked-authority-key": Drill("the key that signs lists of tenants is in other hands", keys.authority_key,
                                  "the next policy refuses every list of the old authority, and clients with it every "
                                  "machine under the policy before"),
    "leaked-builder-key": Drill("the builder's key is in other hands, or an image must never run again",
                                keys.builder_key,
                                "clients refuse what the release log revokes, and all that the leaked key signs"),
    "tampered-disk": Drill("somebody altered the state disk, or put an older copy back", disks.tampered,
                           "no boot and no reader opens the altered disk; the epoch shows the older copy"),
    "tcb-recall": Drill("a maker recalls a firmware", evidence.tcb_recall,
                        "clients and brokers with the raised floor refuse the machine until its firmware is new"),
    "failed-verification": Drill("a verdict is not what it was yesterday", evidence.failed_verification,
                                 "no client sends a word to the machine"),
}
