"""The judge of a bundle believes no lax one: attacks that are missing, a policy of somebody else's, archives that are
made to fill a judge's memory."""

from __future__ import annotations

import io
import json
import tracemalloc
import zlib
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding

from appliance.acceptance import bundle, sight
from appliance.acceptance.attacks import ATTACKS, Scene
from appliance.acceptance.bundle import Manifest, Terms, Trial
from appliance.acceptance.machine import AcceptanceError
from appliance.auditor.archive import zipped
from appliance.cli.main import main
from appliance.policy import load
from tests.support import fake_appliance
from tests.support.fake_amd import NOW, FakeAmd

SHOWN = {"replay": "nonce", "relay": "tls-key", "report": "evidence invalid", "statement": "evidence invalid",
         "software": "platform"}
BOOTED = {name: Trial(ended="silent", by="nothing came up") for name in ("kernel", "initrd", "command-line", "root")}
OWN = {name: Trial(ended="not tried", by="a command of mine") for name in ("cpus", "clock")}


@dataclass(frozen=True)
class Runner:
    """A person who runs a lax policy on a machine, and packs what they like."""

    folder: Path
    policy: Path
    pack: Callable[[Mapping[str, Trial]], bytes]

    def judged(self, trials: Mapping[str, Trial], *words: str) -> tuple[int, dict[str, Any]]:
        """Exit code and outcome of a judge who believes the vendor."""
        (self.folder / "out.bundle").write_bytes(self.pack(trials))
        with redirect_stdout(io.StringIO()) as told:
            code = main(["accept", "--judge", str(self.folder / "out.bundle"), "--json", "--unsafe-root",
                         str(self.folder / "root.pem"), *words])
        return code, json.loads(told.getvalue())


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A machine with SEV-SNP that is there to be asked."""
    folder, amd, key = tmp_path_factory.mktemp("judge"), FakeAmd("Genoa"), Ed25519PrivateKey.generate()
    (folder / "root.pem").write_bytes(amd.ark.public_bytes(Encoding.PEM))
    with fake_appliance.snp(folder, amd, evidence="debug = true\n sev_snp {\n }") as (server, policy):
        first, second = (replace(sight.ask(server.url), at=NOW) for _ in range(2))
        scene = Scene(first, second, load(policy))
        shown = {name: (ATTACKS[name].show or (lambda each: each.first))(scene) for name in SHOWN}

        def pack(trials: Mapping[str, Trial]) -> bytes:
            files = {"policy/deployment.hcl": policy.read_bytes(), **first.members("good"),
                     "image/measurements.json": fake_appliance.measured().to_json(),
                     "collateral/000": amd.crl().public_bytes(Encoding.DER)}
            for name in SHOWN.keys() & {name for name, each in trials.items() if each.ended == "refused"}:
                files |= shown[name].members(f"attacks/{name}")
            manifest = Manifest(
                version="9", machine="x", signer=key.public_key().public_bytes_raw().hex(), attacks=dict(trials),
                terms=Terms(builder_key=None, attestation_keys=(), without_revocation=False, key_bound=True),
                files={name: bundle.file_of(content) for name, content in sorted(files.items())})
            seal = replace(sight.ask(server.url, bundle.nonce(manifest.encode())), at=NOW)
            return bundle.pack(manifest, files, seal, key)

        yield Runner(folder, policy, pack)


REFUSED = {name: Trial(ended="refused", by=by) for name, by in SHOWN.items()}
WHOLE = {**REFUSED, **BOOTED, **OWN}  # `stolen-key` is beside the point: the policy binds no sessions


def test_a_whole_bundle_of_a_lax_policy(runner: Runner) -> None:
    """It is accepted, and what makes it lax is named; the judge's own policy is compared."""
    code, told = runner.judged(WHOLE, "--policy", str(runner.policy))
    assert (0, True, []) == (code, told["held"], told["missing"])
    assert load(runner.policy).digest.hex() == told["policy_sha384"]
    for word in ("debug = true", "--key-bound", "nobody signed"):
        assert any(word in each for each in told["remarks"]), word
    other = runner.folder / "other"
    other.mkdir(exist_ok=True)
    strict = fake_appliance.write_policy(other, "sev-snp", evidence="sev_snp {\n }")
    code, told = runner.judged(WHOLE, "--policy", str(strict))
    assert (1, "bundle-refused") == (code, told["code"])
    assert load(runner.policy).digest.hex() in json.dumps(told)


@pytest.mark.parametrize(("trials", "missing"), [
    ({}, {*SHOWN, *BOOTED, *OWN}),
    ({**WHOLE, "relay": Trial(ended="not tried", by="no time")}, {"relay"}),
    ({**WHOLE, "relay": Trial(ended="silent", by="nothing came up")}, {"relay"}),
    ({**WHOLE, "kernel": Trial(ended="not tried", by="no time")}, {"kernel"}),
    ({name: each for name, each in WHOLE.items() if name != "root"}, {"root"}),
])
def test_an_attack_that_is_missing_is_named(runner: Runner, trials: dict[str, Trial], missing: set[str]) -> None:
    """Left out, or with a reason that nothing shows: not accepted."""
    code, told = runner.judged(trials)
    assert (1, False, missing) == (code, told["held"], set(told["missing"]))


def test_a_judge_says_which_attacks_they_want(runner: Runner) -> None:
    """One attack, for who asks for no other; silence by itself is no refusal."""
    relay = {"relay": REFUSED["relay"]}
    assert 0 == runner.judged(relay, "--attack", "relay")[0]
    assert 1 == runner.judged(relay, "--attack", "replay")[0]
    code, told = runner.judged(BOOTED, "--attack", "root")
    assert (1, "no attack was refused by evidence") == (code, told["against"])


def test_an_archive_that_would_fill_memory_is_refused_before_it_is_inflated() -> None:
    """Sixteen entries of 16 MiB, deflated to a few KiB each: no content is made of them."""
    size = 16 << 20
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = deflate.compress(bytes(size)) + deflate.flush()
    data = zipped.written([zipped.Entry(f"a{n:02}", zipped.DEFLATED, zlib.crc32(bytes(size)), size, packed)
                           for n in range(16)])
    tracemalloc.start()
    try:
        with pytest.raises(AcceptanceError, match="a00: files of a bundle are stored"):
            bundle.unpack(data)
        assert tracemalloc.get_traced_memory()[1] < size
    finally:
        tracemalloc.stop()
    with pytest.raises(AcceptanceError, match="the archive: more than"):
        bundle.unpack(bytes(bundle.MAX_BYTES + 1))
