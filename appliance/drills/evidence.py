"""Evidence that is not what it should be: altered, of another deployment, old firmware."""

from __future__ import annotations

import json
import re
from pathlib import Path

from appliance.attestation.binding import Build, LoadedModel
from appliance.attestation.collect.attestor import Attestor, BoundFacts
from appliance.attestation.simulated.collecting.collector import SimulatedProvider
from appliance.drills.scene import Scene
from appliance.errors import PolicyError
from appliance.policy import Loaded
from appliance.policy.explaining.checking import load

_NONCE = bytes(32)
_FLOOR = re.compile(r"(min_tcb\s*+\{[^{}]*?\bsnp\s*+=\s*+)([0-9]+)")
HIGHEST = 255


def write(policy: Loaded, path: Path) -> None:
    """Write simulated evidence of an appliance under a policy, with the policy's models loaded."""
    facts = BoundFacts(policy.digest, bytes(48), Build(version="drill"))
    attestor = Attestor(SimulatedProvider(policy.host_data), facts)
    attestor.new_generation(LoadedModel(name=each.name, sha256=each.sha256) for each in policy.policy.models)
    path.write_bytes(attestor.attest(_NONCE).to_json())


def failed_verification(scene: Scene) -> None:
    """An appliance shows what it should not; clients refuse, by the rule that fails."""
    authority = scene.key("authority.pem")
    mine, other = scene.policy("deployment.hcl", authority), scene.policy("other.hcl", authority, sha256="02" * 32)
    for each in (mine, other):
        write(load(each), scene.folder / f"{each.stem}.json")
    scene.step("As it should be: only the platform is simulated.")
    scene.run("verify", "deployment.json", "--policy", mine.name, code=5, says="SIMULATED")
    scene.step("Another deployment answers at the address.")
    scene.run("verify", "other.json", "--policy", mine.name, code=3, says="policy")
    scene.step("Evidence of another day is shown again.")
    scene.run("verify", "deployment.json", "--policy", mine.name, "--nonce", "ab" * 32, code=3, says="nonce")
    scene.step("Somebody altered the evidence on its way.")
    told = json.loads((scene.folder / "deployment.json").read_text())
    told["statement"]["policy_sha384"] = load(other).digest.hex()
    scene.write("altered.json", json.dumps(told))
    scene.run("verify", "altered.json", "--policy", other.name, code=1)
    scene.step("Nobody answers: `connect` does not open a port.")
    scene.run("connect", "http://127.0.0.1:1", "--policy", mine.name, code=2, says="unreachable")


def tcb_recall(scene: Scene) -> None:
    """A maker recalls a firmware: the policy's floor is raised above what the machine reports."""
    policy = scene.needs("the policy in force", scene.given.policy, "--policy")
    shown = scene.needs("evidence of a machine, as `appliance verify --save` keeps it", scene.given.evidence,
                        "--evidence")
    text, count = _FLOOR.subn(lambda found: f"{found[1]}{HIGHEST}", policy.read_text(encoding="utf-8"))
    if not count:
        raise PolicyError(f"{policy}: the policy has no floor that could be raised", code="drill-needs",
                          hint="name the least firmware: tee.evidence.sev_snp.min_tcb { snp = N }")
    scene.write("raised.hcl", text)
    scene.step("The floor is raised above every firmware. From now on a machine that was good is refused:")
    told = json.loads(scene.run("verify", str(shown), "--policy", str(policy), *scene.given.options, "--json"))
    scene.expect(told["verdict"], "verified", "the machine before the recall")
    scene.run("verify", str(shown), "--policy", "raised.hcl", *scene.given.options, code=3, says="tcb")
