"""The process sandbox: attacks from inside, each in a process of its own; and the whole service at work within it."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.errors import BootError
from appliance.policy import load
from appliance.sandbox import box, landlock
from tests.support import forked
from tests.support.demo_model import demo_model
from tests.support.require import absent
from tests.support.server import AUDITOR_KEY, Server, write_policy

ROOT = Path(__file__).parents[2]
X86 = platform.machine() == "x86_64"



def _names(text: str) -> list[str]:
    return text.split()


# What whoever took over the service tries -> what comes of it. `signal SIGSYS`: the kernel ends the process.
KILLED = _names("""
    execve execve-at-boot ptrace process_vm_readv process_vm_writev bpf perf_event_open userfaultfd io_uring keyctl
    add_key mount mount-at-boot unshare setns chroot setuid setuid-in-thread capset personality module kexec reboot
    pidfd handle swapon settime pkey_mprotect""")
REFUSED = {
    "EPERM": _names("""
        spawn fork fork-at-boot memfd filter dumpable raise-limit raise-limit-at-boot kill kill-at-boot tty-input chmod
        executable executable-at-boot library mprotect mprotect-at-boot write mkdir socket socket-in-thread udp raw
        netlink vsock packet sctp abstract datagram datagram-at-boot limit-of-another affinity-of-another"""),
    "ESRCH": ["apart"],
    "EACCES": _names("""
        write-at-boot write-policy write-proc write-sys read-other read-other-at-boot read-secret unlink read-disk bind
        connect-at-boot connect-in-load"""),
    "ENOSYS": ["clone3", "openat2", "unknown"],
}
WORKS = ["thread", "constraint", "capabilities", "read-policy", "library-at-boot"]
EXPECTED = (dict.fromkeys(KILLED, "signal SIGSYS") | dict.fromkeys(WORKS, "ok") | {"abort": "signal SIGABRT"}
            | {name: f"errno {code}" for code, names in REFUSED.items() for name in names}
            | ({"x32": "signal SIGSYS", "32-bit": "signal SIGSYS"} if X86 else {}))
HARMLESS = _names("""
    execve fork write read-secret socket datagram connect-at-boot udp executable mprotect memfd kill bind abstract
    library write-policy dumpable clone3 openat2 unlink""")  # what any user may do outside


def _deployment(folder: Path) -> Path:
    """A policy and a file that it does not name, in a folder below."""
    (folder / "outside").mkdir()
    (folder / "outside" / "secret").write_text("not named by the policy")
    (folder / "tiny.gguf").write_bytes(b"never read")
    return write_policy(folder, {"tiny": folder / "tiny.gguf"})


def _tried(folder: Path, *arguments: str) -> dict[str, str]:
    done = forked.run([str(folder), *arguments], {}, entry="tests.support.sandboxed:main")
    assert 0 == done.returncode, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What came of every attack inside of the sandbox."""
    if landlock.version() < landlock.SCOPES:
        absent("this kernel has no Landlock 6 (Linux 6.12); boot one that does")
    folder = tmp_path_factory.mktemp("inside")
    _deployment(folder)
    return _tried(folder, *EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_attack(name: str, inside: dict[str, str]) -> None:
    """Each attack ends as the table says, on the kernel of this machine."""
    assert EXPECTED[name] == inside[name]


def test_the_attacks_are_real(tmp_path: Path) -> None:
    """The same calls succeed outside of the sandbox: it is the sandbox that stops them."""
    _deployment(tmp_path)
    assert dict.fromkeys(HARMLESS, "ok") == _tried(tmp_path, *HARMLESS, "--outside")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the demo model, in its sandbox: nothing of the test run watches it."""
    path = demo_model()
    policy = write_policy(tmp_path_factory.mktemp("served"), {"demo": path}, limits="concurrent_requests = 4")
    server = Server(policy, [path], measured=False, fresh=True).wait_ready()
    yield server
    assert 0 == server.stop()


def test_the_official_client_chats_inside(served: Server) -> None:
    """A sensible answer, whole and streamed, by the real client, and every other endpoint."""
    ask = {"model": "demo", "messages": [{"role": "user", "content": "What is the capital of France?"}],
           "temperature": 0, "max_tokens": 20}
    client = served.client()
    answer = client.chat.completions.create(**ask).choices[0].message.content
    events = client.chat.completions.create(**ask, stream=True)
    streamed = "".join(event.choices[0].delta.content or "" for event in events)
    assert "Paris" in answer
    assert answer == streamed
    assert client.completions.create(model="demo", prompt="One, two,", max_tokens=4).choices[0].text
    assert ["demo"] == [model.id for model in client.models.list()]
    for path in ("/health", f"/v1/attestation?nonce={'0' * 64}"):
        assert 200 == served.http().get(path).status_code
    assert 200 == served.http(AUDITOR_KEY).get("/metrics").status_code


def test_every_thread_is_inside(served: Server) -> None:
    """Each thread has the filters, no capability in any set and no way to gain one, as the kernel says. Where the limit
    of locked memory cannot be raised, the capability to ignore it may be left, which the report says."""
    found = set()
    for folder in Path(f"/proc/{served.process.pid}/task").iterdir():
        status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
        found.add(tuple(status[name].strip().lstrip("0") for name in (
            "Seccomp", "Seccomp_filters", "NoNewPrivs", "CapInh", "CapAmb", "CapPrm", "CapEff")))
    detail = next(measure["detail"] for measure in served.http().get("/health").json()["hardening"]
                  if measure["name"] == "no-capabilities")
    allowed = {""} | ({"4000"} if "CAP_IPC_LOCK is kept" in detail else set())
    assert {("2", "3", "1", "", "")} == {each[:5] for each in found}
    assert {kept for each in found for kept in each[5:]} <= allowed


def test_health_tells_each_measure(served: Server) -> None:
    """The report at /health names every measure of the sandbox, and all are in force here."""
    told = {measure["name"]: measure["outcome"] for measure in served.http().get("/health").json()["hardening"]}
    names = ["resource-limits", "one-thread", "no-capabilities", "landlock-files", "landlock-network",
             "landlock-scopes", "seccomp-boot", "seccomp-load", "seccomp-serve"]
    assert dict.fromkeys(names, "done") == {name: told[name] for name in names}


def test_who_is_watched_stays_outside_and_says_so(tmp_path: Path) -> None:
    """A process with trace hooks is not sandboxed on the simulated platform, which is told; elsewhere it stops."""
    loaded = load(_deployment(tmp_path))
    entered = box.enter(loaded, prebuilt=True, tolerant=True, traced="a trace function is set")
    entered.tighten("load")
    assert {("tolerated", "a trace function is set")} == {(each.outcome, each.detail) for each in entered.measures}
    with pytest.raises(BootError, match="a trace function is set"):
        box.enter(loaded, prebuilt=True, tolerant=False, traced="a trace function is set")
