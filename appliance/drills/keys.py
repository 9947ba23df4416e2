"""Keys that leaked: of a tenant, of the authority that signs lists, of the builder."""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path

from appliance.drills import evidence
from appliance.drills.scene import Scene
from appliance.policy.explaining.checking import load

LEAKED = "sk-leaked-in-a-repository"


def _sha256(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def api_key(scene: Scene) -> None:
    """A tenant's key stands in a repository; the running appliance takes a list without it."""
    model = scene.needs("a model in GGUF, of any size", scene.given.model, "--model")
    fresh, administrator = f"sk-{secrets.token_hex(16)}", f"sk-{secrets.token_hex(16)}"
    policy = scene.policy("deployment.hcl", scene.key("authority.pem"), file=model.name, sha256=_digest(model))
    scene.write("admin.key", administrator).chmod(0o600)
    known = {"operations": ("admin", _sha256(administrator)), "acme": ("user", _sha256(LEAKED))}
    scene.list("tenants.json", 1, known, "authority.pem")
    with scene.serving(policy, model.parent) as url:
        scene.step("The leaked key still works.")
        scene.expect(scene.status(url, LEAKED), 200, "the leaked key")
        scene.step("A list with a new key in its place, of the next version, is signed and pushed.")
        scene.list("next.json", 2, known | {"acme": ("user", _sha256(fresh))}, "authority.pem")
        push = ("--policy", policy.name, "--accept", "simulated", "--api-key-file", "admin.key")
        scene.run("tenants", "push", url, "next.json", *push)
        scene.step("From now on:")
        scene.expect(scene.status(url, LEAKED), 401, "the leaked key")
        scene.expect(scene.status(url, fresh), 200, "the new key")
        scene.run("tenants", "push", url, "tenants.json", *push, code=1, says="version")
    scene.step("A boot with the old list is refused by a policy with `min_version = 2`.")
    scene.policy("deployment-2.hcl", _authority(policy), version=2)
    scene.run("tenants", "tenants.json", "--policy", "deployment-2.hcl", code=2, says="tenants-version")


def authority_key(scene: Scene) -> None:
    """The key that signs lists is in other hands; the policy names another one."""
    scene.policy("deployment.hcl", scene.key("authority.pem"))
    mine = {"acme": ("user", _sha256("sk-acme"))}
    scene.list("tenants.json", 1, mine, "authority.pem")
    scene.step("The thief signs a list with keys of their own, and the policy takes it.")
    scene.list("theirs.json", 9, {"mallory": ("admin", _sha256("sk-mallory"))}, "authority.pem")
    scene.run("tenants", "theirs.json", "--policy", "deployment.hcl")
    scene.step("Another authority is made; the policy pins it, and the list is signed again.")
    scene.policy("next.hcl", scene.key("authority-2.pem"))
    scene.list("tenants.json", 2, mine, "authority-2.pem")
    scene.run("tenants", "tenants.json", "--policy", "next.hcl")
    scene.step("From now on:")
    scene.run("tenants", "theirs.json", "--policy", "next.hcl", code=2, says="tenants-signature")
    scene.step("An appliance that still runs under the policy before is refused by clients with the next one.")
    evidence.write(load(scene.folder / "deployment.hcl"), scene.folder / "evidence.json")
    scene.run("verify", "evidence.json", "--policy", "next.hcl", code=3, says="policy")


def builder_key(scene: Scene) -> None:
    """The release log revokes a policy or an image; clients pin another builder's key."""
    first = scene.policy("deployment.hcl", scene.key("authority.pem"))
    builder, other = scene.key("builder.pem"), scene.key("builder-2.pem")
    evidence.write(load(first), scene.folder / "evidence.json")
    scene.run("image", "release", "log", "--key", "builder.pem", "--policy", first.name)
    known = ("--policy", first.name, "--releases", "log", "--builder-key")
    scene.step("The deployment is released: the verdict is that of the simulated platform.")
    scene.run("verify", "evidence.json", *known, builder, code=5, says="SIMULATED")
    scene.step("It is revoked. From now on:")
    scene.run("image", "release", "log", "--key", "builder.pem", "--revoke-policy", first.name)
    scene.run("verify", "evidence.json", *known, builder, code=3, says="release")
    scene.step("Clients that pin the next builder's key believe nothing that the leaked key signs.")
    scene.run("verify", "evidence.json", *known, other, code=2, says="note-error")


def _authority(policy: Path) -> str:
    return str(load(policy).policy.tenants.authority)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
