"""Images that boot, under emulation: a chat with the guest, and attacks on its disks, arguments and kernel."""

from __future__ import annotations

import ast
import contextlib
import gzip
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import httpx
import openai
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance.auditor.claims.case import Given
from appliance.auditor.pack import gather, judge
from appliance.auditor.pack.gather import Files
from appliance.client import Verifier, transport
from appliance.client.verdict import HOST_TRUSTED
from appliance.imaging.disk import cpio
from appliance.imaging.papers import provenance, sbom
from appliance.imaging.predict import predict
from appliance.imaging.qemu import run as boot
from appliance.imaging.qemu.machine import FIRMWARE
from appliance.imaging.recipe import manifest, recipe
from appliance.policy import load
from tests.support import images, server
from tests.support.images import Guest, direct
from tests.support.require import absent

pytestmark = [pytest.mark.guests, pytest.mark.timeout(1800)]

STARTED = "service starts"
REQUESTS = int(os.environ.get("APPLIANCE_PACK_REQUESTS", "100"))  # that the packed guest is asked, and refuses
PACK_SECONDS = 10  # of a processor, that the pack takes at most


@pytest.fixture(autouse=True)
def _machine() -> None:
    images.need("qemu-system-x86_64", "mkfs.erofs")


def _argument(image: Path, _: Path) -> Guest:
    """One argument more than was measured."""
    return direct(image, extra=("-append", f"{(image / 'cmdline').read_text()} init=/bin/sh"))


def _smbios(image: Path, _: Path) -> Guest:
    """One argument, by SMBIOS: the boot stub takes it, the initrd refuses it."""
    return _firmware(image, extra=("-smbios", "type=11,value=io.systemd.stub.kernel-cmdline-extra=init=/bin/sh"))


def _file_system(image: Path, folder: Path) -> Guest:
    """A byte of the file system's first block."""
    return _flipped(image, folder, 1024)


def _hash_tree(image: Path, folder: Path) -> Guest:
    """A byte of the hash tree's root block."""
    sealed = manifest.read(image)["verity"]
    return _flipped(image, folder, sealed["hash_offset"] + sealed["block_size"])


def _other_root(image: Path, folder: Path) -> Guest:
    """A disk whose hash tree has another salt: it is not even tried, and there is no other."""
    return _flipped(image, folder, manifest.read(image)["verity"]["hash_offset"] + 88)


def _added_files(image: Path, folder: Path) -> Guest:
    """Credentials as boot stubs pass them on: an archive behind ours."""
    copy = _copied(image, folder)
    more = cpio.pack([cpio.Member(".extra"), cpio.Member(".extra/credentials"),
                      cpio.Member(".extra/credentials/x.cred", b"evil")])
    packed = (copy / "initrd.cpio").read_bytes()
    (copy / "initrd.cpio").write_bytes(packed + bytes(-len(packed) % 4) + gzip.compress(more))
    return direct(copy)


REFUSED_LINE = "refused: the command line is not the one that was measured"
PANIC = r"verity.*(corrupted|metadata block)"
TAMPERED: dict[str, tuple[Callable[[Path, Path], Guest], str]] = {
    "argument": (_argument, REFUSED_LINE), "smbios": (_smbios, REFUSED_LINE), "file system": (_file_system, PANIC),
    "hash tree": (_hash_tree, PANIC), "other root": (_other_root, r"\A(?!.*\binit )"),
    "added files": (_added_files, "refused: the initrd holds what was not measured: credentials")}


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Future[str]]:
    """The console of an image whose service is the probe: built and booted once, beside other guests."""
    images.need("qemu-system-x86_64", "mkfs.erofs")
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(_probe, tmp_path_factory.mktemp("probe"), tiny_model)


def _probe(folder: Path, model: Path) -> str:
    plan = folder / "recipe"
    shutil.copytree(recipe.FOLDER, plan)
    layout, prune = plan / "layout.toml", plan / "prune.toml"
    probe = (images.ROOT / "tests/support/guest_probe.py").read_text()
    layout.write_text(layout.read_text().replace("[files]\n", "[files]\n" + (
        f'"usr/lib/python3/dist-packages/appliance/cli/serve.py" = {json.dumps(probe)}\n')))
    kept = '"appliance/cli/serve.py",'  # the service's own, which the probe stands in for
    assert kept in prune.read_text()
    prune.write_text(prune.read_text().replace(kept, ""))
    image = images.make(folder / "image", folder=plan)
    (folder / "models").mkdir()
    shutil.copy(model, folder / "models")
    shutil.copy(images.ROOT / "benchmarks/cgroups.py", folder / "models")
    server.write_policy(folder / "models", {"tiny": model}).rename(folder / "models/limits.hcl")
    return direct(image, models=folder / "models", memory=512).run().console


class TestTampering:
    """One byte of root image, command line or initrd, and no service starts."""

    @pytest.fixture(scope="class")
    @staticmethod
    def consoles(image: Path, probed: Future[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
        """What each guest wrote until it went off, or came to what it must not; two run at a time."""
        def run(name: str) -> str:
            told = ""
            for _ in range(3):
                guest = TAMPERED[name][0](image, tmp_path_factory.mktemp("tampered"))
                if name == "other root":  # for which it waits for ever
                    threading.Timer(20, guest.stop).start()
                console = guest.run(lambda line: STARTED in line).console
                told += console
                if "Fatal exception" not in console:  # of an emulator that now and then computes wrong
                    break
            return told

        with ThreadPoolExecutor(2) as pool:
            return dict(zip(TAMPERED, pool.map(run, TAMPERED), strict=True))

    @pytest.mark.parametrize("name", TAMPERED)
    def test_no_service_starts(self, consoles: dict[str, str], name: str) -> None:
        """And the console says why."""
        assert STARTED not in consoles[name]
        assert re.search(TAMPERED[name][1], consoles[name], re.S if name == "other root" else 0), consoles[name]
        assert not re.search(r"Call Trace|\b(R[A-D]X|CR3): ", consoles[name])  # the console is the host's


def _firmware(image: Path, **more: object) -> Guest:
    if not FIRMWARE[0].is_file():
        absent("OVMF: install ovmf")
    return Guest(boot.Options(image=image, accelerator="tcg", confidential="none",
                              **{"port": None, **more}))  # type: ignore[arg-type]


def _copied(image: Path, folder: Path) -> Path:
    return Path(shutil.copytree(image, folder / "image", ignore=shutil.ignore_patterns("disk.raw")))


def _flipped(image: Path, folder: Path, at: int) -> Guest:
    copy = _copied(image, folder)
    with (copy / "root.img").open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    return direct(copy)


REFUSED = re.compile(r"refused: ")


class TestInside:
    """As root in the guest, with every capability and before any sandbox: what is still refused."""

    @pytest.fixture(scope="class")
    @staticmethod
    def verdicts(probed: Future[str]) -> dict[str, str]:
        """What the probe found."""
        found, console = {}, probed.result()
        assert "service ended: exit code 0" in console, console
        for line in console.splitlines():
            with contextlib.suppress(ValueError):
                record = json.loads(line)
                found[record["probe"]] = record["verdict"]
        return found

    def test_everything_that_must_be_refused_is(self, verdicts: dict[str, str]) -> None:
        """System calls, files, disks, mounts, settings, programs, core dumps, connections."""
        attempts = {name: verdict for name, verdict in verdicts.items() if not verdict.startswith("found: ")}
        assert len(attempts) > 45
        assert {name: verdict for name, verdict in attempts.items() if not REFUSED.match(verdict)} == {}

    @pytest.mark.parametrize(("name", "wanted"), [
        ("lockdown", r"none integrity \[confidentiality\]"), ("swaps", "0"), ("modules disabled", "1"),
        ("memory", r"mem auto-init: stack:.*, heap alloc:on, heap free:on"),
        ("pid 1", r"/usr/bin/python3\.13 -I .*-m appliance\.guest\.init")])
    def test_state_of_the_kernel(self, verdicts: dict[str, str], name: str, wanted: str) -> None:
        """What the kernel says of itself."""
        assert re.match("found: " + wanted, verdicts[name]), verdicts[name]

    def test_two_processes_run(self, verdicts: dict[str, str]) -> None:
        """Process 1 and the service."""
        assert len(ast.literal_eval(verdicts["processes"].removeprefix("found: "))) == 2

    def test_only_memory_is_writable(self, verdicts: dict[str, str]) -> None:
        """Mounts that can be written to hold no file of the image."""
        mounts = ast.literal_eval(verdicts["writable mounts"].removeprefix("found: "))
        assert set(mounts) <= {"/dev", "/proc", "/run", "/sys", "/sys/kernel/config", "/tmp"}  # noqa: S108

    def test_limits_of_control_groups(self, verdicts: dict[str, str]) -> None:
        """Version 2, on a kernel that has its memory controller: the limit is found, a boot that does not fit is
        refused with the sum, the kernel ends whoever takes more; what the benchmarks read of a group is there."""
        found = json.loads(verdicts["control group"].removeprefix("found: "))
        room, refusal = json.loads(found["room"]), json.loads(found["refusal"])
        assert (2, 300 << 20, None) == (found["version"], room["limit"], room["refusal"])
        assert 200 << 20 < room["room"] <= 300 << 20
        assert 96 << 20 == refusal["limit"]
        assert "are needed, there are" in refusal["refusal"]
        assert ("signal 9", 1, True, True) == (found["killed"], found["kills"], found["peak"], found["closed"])
        assert ["anonymous", "cached"] == found["stat"]

    def test_environment_is_ours(self, verdicts: dict[str, str]) -> None:
        """Nothing from the kernel's command line or the host gets into it."""
        assert set(ast.literal_eval(verdicts["environment"].removeprefix("found: "))) <= {
            "GLIBC_TUNABLES", "LANG", "LC_CTYPE", "NO_COLOR", "TERM"}  # the first by process 1, to one value


CREDENTIAL = "type=11,value=io.systemd.credential:appliance.policy=evil"
VM = images.ROOT / "examples/vm"


class TestChat:
    """The README's three commands: build and predict; boot with firmware, TPM, kernel image, verity root, models on a
    disk of their own, a forwarded port; verify the quote, and chat."""

    @pytest.fixture(scope="class")
    @staticmethod
    def vm(tmp_path_factory: pytest.TempPathFactory) -> Path:
        """The example's image."""
        return images.make(tmp_path_factory.mktemp("vm") / "image", policy=VM / "deployment.hcl")

    @pytest.fixture(scope="class")
    @staticmethod
    def guest(vm: Path) -> Iterator[tuple[Guest, int]]:
        """A guest of 768 MiB with the demo model that serves, and the port that leads to it. What SMBIOS offers it for
        systemd changes nothing: the registers below are as predicted."""
        if not images.MODELS.is_dir():
            absent("the demo model: make demo")
        port, ready, done = images.free_port(), threading.Event(), threading.Event()
        guest = _firmware(vm, models=images.MODELS, add=(VM / "tenants.json",), port=port, tpm=True,
                          audit=vm / "audit.jsonl", extra=("-smbios", CREDENTIAL))

        def ended(line: str) -> bool:
            if line.startswith(("ready on", "init")) and ("ready on" in line or "ended" in line):
                ready.set()
            return done.is_set()

        thread = threading.Thread(target=lambda: (guest.run(ended), ready.set()))
        thread.start()
        try:  # and while it boots, what `build --here` does
            predict.predict(predict.Options(vm, golden=(images.golden(vm),)))
            ready.wait()
            yield guest, port
        finally:
            done.set()
            guest.stop()
            thread.join()

    def test_the_quote_is_checked_and_the_official_client_chats(self, vm: Path, guest: tuple[Guest, int]) -> None:
        """Registers as predicted, a fresh nonce, the key of the TLS connection; then a greedy answer over it."""
        console, port = guest[0].console, guest[1]
        assert "ready on" in console, console
        verifier = Verifier.from_files(VM / "deployment.hcl", vm / "measurements.json", measurements_unsigned=True,
                                       any_ak=True)  # nobody vouches for a software TPM's key
        verdict = verifier.verify(f"https://127.0.0.1:{port}")
        assert verdict.status == HOST_TRUSTED, str(verdict)
        with httpx.Client(transport=transport(verifier, accept=(HOST_TRUSTED,)), timeout=600) as http:
            client = openai.OpenAI(base_url=f"https://127.0.0.1:{port}/v1", api_key="sk-appliance-demo", max_retries=0,
                                   http_client=http)
            answer = client.chat.completions.create(
                model="demo", messages=[{"role": "user", "content": "Name three rivers."}], max_tokens=4, temperature=0)
        assert answer.choices[0].message.content == "1. The River"

    def test_the_console_reports_each_step(self, vm: Path, guest: tuple[Guest, int]) -> None:
        """Each step of process 1 with its verdict; no key of a tenant, no prompt; the audit log is in its own file."""
        console = guest[0].console
        for step in ("mounts", "network", "disks", "sysctl"):
            assert re.search(rf"^init +[\d.]+: {step} +ok", console, re.M), step
        assert "sk-appliance" not in console
        assert "rivers" not in console
        audit = (vm / "audit.jsonl").read_text().splitlines()
        assert {json.loads(line)["event"] for line in audit} >= {"boot.start", "boot.ready", "service.listening"}
        assert '"event":"boot.' not in console

    def test_its_papers_are_one_pack(self, vm: Path, guest: tuple[Guest, int]) -> None:
        """What an auditor takes home of a guest: nothing speaks against it, and nothing is claimed where the host has
        to be trusted."""
        verifier = Verifier.from_files(VM / "deployment.hcl", vm / "measurements.json", measurements_unsigned=True,
                                       any_ak=True)
        nonce, builder = bytes(range(32)), Ed25519PrivateKey.generate()
        with httpx.Client(transport=transport(verifier, accept=(HOST_TRUSTED,)), timeout=600,
                          base_url=f"https://127.0.0.1:{guest[1]}") as http:
            for _ in range(REQUESTS):
                assert 401 == http.post("/v1/completions", json={"model": "demo", "prompt": "rivers"}).status_code
            (vm / "evidence.json").write_bytes(http.get(f"/v1/attestation?nonce={nonce.hex()}").content)
            (vm / "health.json").write_bytes(http.get("/health").content)
        document, policy = manifest.read(vm), load(VM / "deployment.hcl")
        bill = sbom.make(document, policy)
        files = {name: each["sha256"] for name, each in document["files"].items()} | {
            sbom.NAME: provenance.digest(bill)}
        (vm / "sbom.cdx.json").write_bytes(bill)
        (vm / "provenance.jsonl").write_bytes(provenance.envelope(provenance.statement(document, files), builder))
        given = Given(datetime.now(UTC).replace(microsecond=0), builder.public_key().public_bytes_raw(), unsigned=True,
                      nonces=(nonce,))
        begun, used = time.monotonic(), time.process_time()
        data, findings = judge.written(gather.members(Files(
            policy=VM / "deployment.hcl", measurements=vm / "measurements.json", sbom=vm / "sbom.cdx.json",
            provenance=vm / "provenance.jsonl", evidence=(vm / "evidence.json",), health=vm / "health.json",
            log=_whole_lines(vm))), given)
        taken, used = time.monotonic() - begun, time.process_time() - used
        assert [] == [each for each in findings.values() if each.outcome == "fails"]
        assert "not checked" == findings["evidence-verified"].outcome
        for name in ("evidence-policy", "evidence-measurement", "evidence-models", "evidence-fresh", "boot-report",
                     "sbom-materials", "sbom-models", "provenance-signed", "provenance-image", "measurements-policy"):
            assert "holds" == findings[name].outcome, findings[name]
        print(f"{REQUESTS} requests, {len(data)} bytes, {taken:.1f} s")
        assert len(data) < 5_000_000
        assert used < PACK_SECONDS
        assert [] == judge.judge(data, given).failed


def _whole_lines(vm: Path) -> Path:
    """A copy of the running guest's log, up to its last whole line."""
    text, copy = (vm / "audit.jsonl").read_bytes(), vm / "copy.jsonl"
    copy.write_bytes(text[:text.rfind(b"\n") + 1])
    return copy
