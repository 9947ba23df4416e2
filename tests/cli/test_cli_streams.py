"""Standard streams that are full, closed, or of another encoding: never an answer that nobody can read."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from appliance.cli.main import main
from tests.support.environment import unmeasured, usual_signals
from tests.support.policies import BASE
from tests.support.server import write_policy

ROOT = Path(__file__).parents[2]
VERBS = {
    "valid": ["check", "valid.hcl"], "findings": ["check", "findings.hcl", "--json"], "digest": ["digest", "valid.hcl"],
    "copy": ["digest", "valid.hcl", "--without-tenants"], "key": ["key", "new"], "schema": ["schema"],
    "help": ["--help"], "version": ["--version"], "help of a verb": ["check", "--help"],
    "unreachable": ["verify", "http://127.0.0.1:1", "--policy", "valid.hcl", "--json"],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a valid policy, and one whose findings and comments are not ASCII."""
    (tmp_path / "valid.hcl").write_text(f"# Grüße\n{BASE}")
    (tmp_path / "findings.hcl").write_text(re.sub('name *= *"[^"]*"', 'name = "démo"', BASE, count=1))
    return tmp_path


def _run(folder: Path, words: list[str], redirect: str = "", **environment: str) -> subprocess.CompletedProcess[bytes]:
    command = f'exec "$0" -m appliance "$@" {redirect}'
    return subprocess.run(
        ["/bin/sh", "-c", command, sys.executable, *words], cwd=folder, env=os.environ | environment,
        capture_output=True, check=False)


@pytest.mark.parametrize("redirect", [">/dev/full", ">&-", ">&- 2>&- <&-", ">/dev/full 2>/dev/full"])
@pytest.mark.parametrize("verb", VERBS)
def test_output_that_cannot_be_written_is_no_answer(folder: Path, verb: str, redirect: str) -> None:
    """The exit code is that of what could not run: 1 would be an answer, which is what a traceback ends with."""
    done = _run(folder, VERBS[verb], redirect)
    assert (2, b"") == (done.returncode, done.stdout)
    assert b"Traceback" not in done.stderr
    if "2>" not in redirect:
        assert done.stderr.startswith(b"error[")


SANDBOXED = """
import os, sys
def hook(event, args):
    if event == "open" and args[0] == os.devnull:
        raise PermissionError(13, "Permission denied")
sys.addaudithook(hook)
from appliance.__main__ import start
start()
"""


def test_output_that_cannot_be_written_from_the_sandbox(folder: Path) -> None:
    """Where no device may be opened to throw it away, the exit code is the same."""
    for redirect in (">/dev/full", ">/dev/full 2>/dev/full"):
        done = subprocess.run(
            ["/bin/sh", "-c", f'exec "$0" -c "$@" {redirect}', sys.executable, SANDBOXED, "schema"], cwd=folder,
            env=unmeasured() | {"PYTHONPATH": str(ROOT)}, capture_output=True, check=False)
        assert (2, False) == (done.returncode, b"Traceback" in done.stderr)


def test_a_closed_standard_error_is_not_in_the_way(folder: Path) -> None:
    """Neither does what should go there go elsewhere."""
    done = _run(folder, ["check", "absent.hcl"], "2>&-")
    assert (2, b"") == (done.returncode, done.stdout)


@pytest.mark.parametrize("encoding", ["ascii", "ascii:strict", "utf-8"])
def test_findings_are_shown_in_any_encoding(folder: Path, encoding: str) -> None:
    """What the encoding lacks is written as an escape, and the exit code is still that of findings."""
    done = _run(folder, ["check", "findings.hcl"], PYTHONIOENCODING=encoding)
    assert 1 == done.returncode
    name = "démo" if encoding == "utf-8" else r"d\xe9mo"
    assert f'error[value]: name is "{name}"'.encode() in done.stdout


def test_a_copy_without_tenants_has_the_policys_own_bytes(folder: Path) -> None:
    """In a locale without them, too: another copy would have other words, or none."""
    done = _run(folder, ["digest", "valid.hcl", "--without-tenants"], PYTHONIOENCODING="ascii")
    assert 0 == done.returncode
    assert done.stdout.startswith("# Grüße\n".encode())
    (folder / "copy.hcl").write_bytes(done.stdout)
    digests = [json.loads(_run(folder, ["digest", name, "--json"]).stdout)["policy_sha384"]
               for name in ("valid.hcl", "copy.hcl")]
    assert digests[0] == digests[1]


def test_an_interrupt_before_the_verb_has_begun_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while its modules are imported, which takes longer than most verbs do."""
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("importlib.import_module", interrupted)
    assert 130 == main(["check", "valid.hcl"])


def test_what_no_verb_foresaw_is_told_where_output_is_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]
                                                              ) -> None:
    """A file where a folder has to be made: in words, also where the caller keeps the output in memory."""
    (tmp_path / "file").touch()
    with contextlib.redirect_stdout(io.StringIO()):
        assert 2 == main(["image", "build", "-o", str(tmp_path / "file/image")])
    assert capsys.readouterr().err.startswith("error[")


def test_a_name_or_key_that_is_no_unicode_is_an_error_in_words(folder: Path) -> None:
    """The exit code of a traceback would be an answer: "evidence invalid", or "not yet approved"."""
    (folder / "key.pem").write_bytes(Ed25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    for words in (["approve", "valid.hcl", "--key", "key.pem", "--as", "\udcff"],
                  ["verify", "file", "--policy", "valid.hcl", "--measurements", "file", "--builder-key",
                   "ed25519:\udcff"]):
        done = _run(folder, [*words, "--json"])
        assert (2, 2) == (done.returncode, json.loads(done.stdout)["exit_code"])
        assert done.stderr.startswith(b"error[")


# Runs the command line with a signal as it begins to import a module.
SIGNALLED = """\
import os, sys
number, name = int(sys.argv.pop(1)), sys.argv.pop(1)
def hook(event, args):
    if event == "import" and args[0] == name:
        os.kill(os.getpid(), number)
sys.addaudithook(hook)
from appliance.__main__ import start
start()
"""


@pytest.mark.parametrize("name", ["argparse", "appliance.errors", "pydantic_core", "datetime", "appliance.policy"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_during_imports_ends_without_a_word(folder: Path, number: signal.Signals, name: str) -> None:
    """An exception in the midst of one came out as a traceback, or as a panic of an extension module: exit code 1, that
    of findings."""
    words = [sys.executable, "-c", SIGNALLED, str(int(number)), name, "check", "findings.hcl"]
    done = subprocess.run(words, cwd=folder, env=unmeasured() | {"PYTHONPATH": str(ROOT)}, capture_output=True,
                          text=True, check=False, preexec_fn=usual_signals)
    assert (128 + number, "", "") == (done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("words", [["model", "inspect", "x"], ["infer", "valid.hcl", "--prompt", "x"],
                                   ["serve", "valid.hcl"]], ids=" ".join)
def test_a_package_that_is_absent_is_named(folder: Path, words: list[str]) -> None:
    """Where the client alone is installed, verbs of the server say so; a traceback's exit code is that of findings."""
    script = "import sys; sys.modules['numpy'] = None; from appliance.cli.main import main; sys.exit(main())"
    for more in ([], ["--json"]):
        done = subprocess.run([sys.executable, "-c", script, *words, *more], cwd=folder, capture_output=True, text=True,
                              env=unmeasured() | {"PYTHONPATH": str(ROOT)}, check=False)
        assert (2, False) == (done.returncode, "Traceback" in done.stderr), done.stderr
        assert "the package numpy is not installed" in done.stderr
        if more and words[0] != "serve":
            assert "package-absent" == json.loads(done.stdout)["code"]


SCARCE = """
import resource, sys, threading
from pathlib import Path
from appliance.cli.main import main
stack, more = int(sys.argv[1]), int(sys.argv[2])
threading.stack_size(stack << 20)
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (more << 20), -1))
sys.exit(main(sys.argv[3:]))
"""


def _scarce(folder: Path, stack: int, more: int, words: list[str]) -> subprocess.CompletedProcess[bytes]:
    """A verb for which there are `more` MiB, and threads have stacks of `stack` MiB."""
    command = [sys.executable, "-c", SCARCE, str(stack), str(more), *words]
    return subprocess.run(command, cwd=folder, capture_output=True, env=unmeasured() | {"PYTHONPATH": str(ROOT)},
                          check=False)


@pytest.mark.parametrize("more", [2, 3, 6, 9, 12])
def test_no_memory_to_begin_with(more: int, folder: Path) -> None:
    """Where it runs out while the verb's modules are imported, that is no answer either."""
    for words in (["check", "valid.hcl"], ["check", "valid.hcl", "--json"]):
        done = _scarce(folder, 0, more, words)
        assert (2, False) == (done.returncode, b"Traceback" in done.stderr)
        assert b"no memory is left" in (done.stdout if "--json" in words else done.stderr)


@pytest.mark.parametrize(("kib", "start"), [(512, ["-m", "appliance"]), (128, ["-m", "appliance"]),
                                            (64, ["-I", "-m", "appliance"])])
@pytest.mark.parametrize("hard", [True, False])
def test_a_small_stack(kib: int, start: list[str], hard: bool, folder: Path) -> None:
    """Too small a stack is an error with its exit code, not a crash, as long as CPython itself begins; where only the
    soft limit is small it is raised."""
    most = resource.getrlimit(resource.RLIMIT_STACK)[1]
    done = subprocess.run([sys.executable, *start, "check", "valid.hcl"], cwd=folder, capture_output=True, check=False,
                          env=unmeasured() | {"PYTHONPATH": str(ROOT)}, preexec_fn=lambda: resource.setrlimit(
                              resource.RLIMIT_STACK, (kib << 10, kib << 10 if hard else most)))
    assert (2 if hard else 0) == done.returncode, done.stderr
    assert hard is (f"a stack of {kib} KiB is allowed; needed is 1024 KiB".encode() in done.stderr)


def test_no_thread_can_be_started(folder: Path, tiny_model: Path) -> None:
    """Verbs that read models say so, and what to do."""
    write_policy(folder, {"tiny": tiny_model})
    key = folder / "key"
    key.touch(0o600)
    key.write_text("5a" * 32)
    for words in (["infer", "policy.hcl", "--models", str(tiny_model.parent), "--prompt", "x"],
                  ["model", "seal", str(tiny_model), "-o", "sealed", "--key", "key"],
                  ["model", "seal", str(tiny_model), "-o", "sealed", "--key", "key", "--json"]):
        done = _scarce(folder, 1 << 16, 1 << 15, words)
        assert (2, False) == (done.returncode, b"Traceback" in done.stderr), done.stderr
        assert b"no thread can be started" in (done.stdout if "--json" in words else done.stderr)
