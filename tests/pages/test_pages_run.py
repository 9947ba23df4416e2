"""The pages that no other test follows: each command is typed, in the page's order, in a folder that has what the page
takes for granted. Commands that need an appliance get one on a faked SEV-SNP machine."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.client.test_verify_guide import amd_services
from tests.pages.test_page_commands import COMMANDS, PAGES, Page
from tests.service.test_hardware_service import running
from tests.support import deployed, images, one_line, server
from tests.support.pages import ROOT
from tests.support.reader import Reader

pytestmark = pytest.mark.slow

RUN = [name for name, page in PAGES.items() if any(page.types(line.text) for line in COMMANDS[name])]
SET = re.compile(r"^(?:export )?[A-Z_]+=(?:\"[^\"]*\"|[^\s\"]*)(?:\s*#.*)?$")  # a line that only sets a variable
@dataclass(frozen=True)
class Deployment:
    """The owner's folder, the running appliance, its maker's service, where `appliance` is, and the audit log."""

    folder: Path
    url: str
    maker: str
    bin_folder: Path
    log: Path


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Deployment]:
    """One appliance for all pages; each page gets a copy of the folder."""
    root = tmp_path_factory.mktemp("deployed")
    owner, machine = root / "owner", root / "machine"
    owner.mkdir()
    machine.mkdir()
    deployed.write(owner, tiny_model)
    for name in ("deployment.hcl", "tenants.json", "MODEL.gguf"):
        shutil.copy(owner / name, machine / name)
    with ExitStack() as stack:
        url = stack.enter_context(running("sev-snp", machine / "deployment.hcl", machine / "MODEL.gguf", machine))
        maker = stack.enter_context(amd_services(machine))
        bin_folder = stack.enter_context(one_line.command(root))
        shutil.copy(machine / "root.der", owner / "root.der")
        shutil.copy(machine / "amd.crl", owner / "collateral/list.crl")
        yield Deployment(owner, url, maker, bin_folder, machine / "audit.jsonl")


class Typist(Reader):
    """Somebody who types a page; what a line sets is known to the next ones."""

    def __init__(self, folder: Path, made: Deployment) -> None:
        ports = {f"127.0.0.1:{port}": f"127.0.0.1:{images.free_port()}" for port in (8080, 8081, 9000, 9102)}
        super().__init__(folder, {
            **{f"https://{host}": made.url for host in ("10.0.0.7:8443", "10.0.0.8:8443", "node-17:8443", "HOST:PORT")},
            **ports, "APPLIANCE_API_KEY=...": f"APPLIANCE_API_KEY={deployed.ADMIN_KEY}", "sk-…": server.AUDITOR_KEY,
            "--builder-key KEY": "--builder-key builder.pub", "/dev/vdb": "state.disk", "/keep": str(folder),
            ".venv/bin/": "", "https://releases.example": f"file://{folder}/LOG", " /models": " .",
            " ...": " --measurements measurements.json --builder-key builder.pub --collateral collateral",
            "sha256:…": f"sha256:{'ab' * 32}",
            "2026-12-01T12:00:00Z": f"{datetime.now(UTC) + timedelta(days=1):%Y-%m-%dT%H:%M:%SZ}"},
            first=[made.bin_folder])
        root = "--unsafe-root root.der"
        self.added = {
            **dict.fromkeys(("appliance verify", "appliance connect", "appliance watch", "appliance top",
                             "appliance console", "appliance models l", "appliance models s", "appliance models u",
                             "appliance tenants push", "appliance fleet judge"), root),
            "appliance collateral fetch": f"{root} --from {made.maker}"}
        self.environment |= {"KEY": server.KEY, "PYTHONPATH": str(ROOT), "HOME": str(folder)}
        self.made = made

    def sets(self, text: str) -> None:
        """Run a line that sets a variable, for the next ones."""
        found = self.types(f"set -a\n{text}\nenv -0")
        self.environment = dict(each.split("=", 1) for each in found.stdout.split("\0") if "=" in each)


def _first(typist: Typist) -> None:
    """Save the policy that the README begins with, for a port that is free."""
    text = re.search(r"^```hcl\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert text is not None
    port = typist.places["127.0.0.1:8080"].rpartition(":")[2]
    (typist.folder / "first.hcl").write_text(re.sub(r"port = 8080\b", f"port = {port}", text[1]))


def _evidence(typist: Typist) -> None:
    """Keep evidence, then ask, as the page before this one says."""
    typist.ends("appliance verify https://10.0.0.7:8443 --policy deployment.hcl --measurements measurements.json "
                "--builder-key builder.pub --collateral collateral --save evidence.json", 0)
    deployed.answered(typist.folder, typist.made.url)


def _of_that_day(typist: Typist) -> None:
    """The nonce that the evidence answers, and a time after it."""
    nonce = json.loads((typist.folder / "evidence.json").read_text())["proof"]["nonce"]
    typist.places |= {"NONCE": nonce, "2026-11-20T12:00:00Z": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"}


def _stranger(typist: Typist) -> None:
    """The parts of a receipt."""
    typist.ends("appliance receipt verify answer.json --request request.json --evidence evidence.json --policy "
                "deployment.hcl --parts .", 0)


def _last_week(typist: Typist) -> None:
    """A checkpoint of the log, then the log as it goes on."""
    deployed.checkpointed(typist.folder, typist.made.url, "checkpoint.last-week")
    shutil.copy(typist.made.log, typist.folder / "audit.jsonl")


def _in_folder(work: Callable[[Path], None]) -> Callable[[Typist], None]:
    return lambda typist: work(typist.folder)


BEFORE: dict[tuple[str, str], Callable[[Typist], None]] = {  # what a person does before the command that begins so
    ("README.md", ".venv/bin/appliance serve"): _first,
    ("docs/formats/approvals.md", "appliance approve deployment.hcl --message"): _in_folder(deployed.approved_by_alice),
    ("docs/formats/receipt.md", "appliance receipt verify"): _evidence,
    ("docs/formats/receipt.md", "openssl pkeyutl"): _stranger,
    ("docs/formats/release-log.md", "appliance image release LOG --key builder.pem --measurements"): _in_folder(
        deployed.continued),
    ("docs/formats/sharded-model.md", "appliance model pin"): _in_folder(deployed.split),
    ("docs/guides/audit.md", "appliance verify evidence.json"): _of_that_day,
    ("docs/guides/audit.md", "appliance infer"): _in_folder(deployed.simulated),
    ("docs/guides/image.md", "appliance image kubevirt deployment.hcl"): _in_folder(deployed.for_tdx),
    ("docs/guides/incidents/leaked-authority-key.md", "appliance tenants list.json"): _in_folder(
        deployed.next_authority),
    ("docs/guides/incidents/tampered-disk.md", "appliance audit verify"): _last_week,
    ("docs/guides/streaming.md", "appliance plan-memory policy.hcl --models"): _in_folder(deployed.planned),
    ("docs/guides/structured-output.md", "appliance infer"): _in_folder(deployed.simulated),
    ("docs/reference/baselines.md", "appliance check"): _in_folder(deployed.banks),
}


def _folder(tmp_path: Path, made: Deployment) -> Path:
    folder = tmp_path / "page"
    shutil.copytree(made.folder, folder, symlinks=True)
    shutil.copy(made.log, folder / "audit.jsonl")
    (folder / "list.json").write_text(json.dumps(deployed.listed(next(deployed.VERSIONS))))
    for name in ("examples", "policies"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "build/vm").mkdir(parents=True)
    (folder / "build/models").symlink_to(images.MODELS)
    return folder


@pytest.mark.parametrize("name", RUN)
def test_a_page_is_typed(name: str, deployment: Deployment, tmp_path: Path) -> None:
    """Each command ends with 0, or as `commands.toml` says; those that stay until the end of the page begin."""
    page, typist = PAGES[name], Typist(_folder(tmp_path, deployment), deployment)
    with ExitStack() as kept:
        for line in COMMANDS[name]:
            text = re.sub(r"\s+#\s.*$", "", line.text)
            if SET.match(text):
                typist.sets(text)
            elif page.types(text):
                for (where, beginning), prepare in BEFORE.items():
                    if where == name and text.startswith(beginning):
                        prepare(typist)
                _typed(typist, page, text, kept, line.place)


def _typed(typist: Typist, page: Page, text: str, kept: ExitStack, place: str) -> None:
    word = page.row(page.keeps, text)
    if word is not None:
        kept.enter_context(typist.keeps(text, typist.here(word)))
        return
    done = typist.types(text)
    code = page.row(page.ends, text) or 0
    assert code == done.returncode, f"{place}: {text}\n{done.stdout}{done.stderr}"
