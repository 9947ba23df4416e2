"""The benchmarks' own arithmetic: synthetic models, ratios, shares of the limit, chart."""

from __future__ import annotations

import hashlib
import importlib
import math
import pkgutil
import platform
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from argparse import Namespace
from pathlib import Path

import gguf
import numpy as np
import pytest

import benchmarks
from appliance.audit.endpoints import ENDPOINTS, name_of
from appliance.errors import ImageError, PolicyError
from appliance.imaging.recipe import recipe
from appliance.models.sealed import reader as sealed
from appliance.policy import load
from appliance.signed import tenants
from benchmarks import commandline, disk, libraries, measure, memory, models, peer, process, report
from benchmarks.measure import Row
from benchmarks.siege import books, deployed, lists, mixed, siege
from benchmarks.tenants import judging
from tests.support.environment import usual_signals
from tests.support.require import absent

TINY = models.Shape(layers=9, width=256, hidden=512, heads=4, kv_heads=2, vocabulary=300)


@pytest.mark.parametrize("name", [each.name.removeprefix("benchmarks.") for each in pkgutil.walk_packages(
    benchmarks.__path__, "benchmarks.") if not each.name.endswith("__main__")])
def test_what_benchmarks_use_is_there(name):
    """Each module is imported: some are loaded by a measured process alone."""
    assert importlib.import_module(f"benchmarks.{name}")


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A synthetic model that is written in no time."""
    monkeypatch.setitem(models.SHAPES, "tiny", TINY)
    return models.make("tiny", tmp_path)


def test_synthetic_model_is_well_formed(tiny):
    """Another reader finds every tensor with its type and shape, and values of the deviation that was meant."""
    reader = gguf.GGUFReader(tiny)
    found = {tensor.name: tensor for tensor in reader.tensors}
    assert {name for name, *_ in models.tensors(TINY)} == set(found)
    for name, rows, columns, kind in models.tensors(TINY):
        assert (gguf.GGMLQuantizationType.F32 if kind is None else kind) == found[name].tensor_type
        assert ([columns] if kind is None else [columns, rows]) == found[name].shape.tolist()
    for name in ("blk.0.attn_q.weight", "output.weight"):
        values = gguf.quants.dequantize(found[name].data, found[name].tensor_type)
        assert 0.8 < np.std(values) * np.sqrt(256) < 1.2
        assert abs(np.mean(values)) * np.sqrt(256) < 0.2


def test_synthetic_model_is_made_once(tiny, tmp_path):
    """The same bytes come out again, and a file that is there is left alone."""
    before, stamp = tiny.read_bytes(), tiny.stat().st_mtime_ns
    assert stamp == models.make("tiny", tmp_path).stat().st_mtime_ns
    tiny.unlink()
    assert before == models.make("tiny", tmp_path).read_bytes()


def test_seven_billion_shape_has_its_size():
    """The 7B shape has Llama 2's number of weights, the 1.1B shape TinyLlama's."""
    def weights(name):
        return sum(rows * columns for _, rows, columns, _ in models.tensors(models.SHAPES[name]))

    assert 6_738_415_616 == weights("7b")
    assert 1_100_048_384 == weights("1.1b")
    assert weights("2.8b") == pytest.approx(2.8e9, rel=0.02)


def test_sizes_leave_the_embedding_out(tiny):
    """A token reads every matrix but the embedding table, of which it reads one row."""
    nbytes, weights = report.sizes(tiny)
    used = [(rows * columns, kind) for name, rows, columns, kind in models.tensors(TINY) if name != "token_embd.weight"]
    assert sum(count for count, kind in used if kind is not None) == weights
    bits = {None: 32, models.Q4_K: 4.5, models.Q6_K: 6.5625}
    assert sum(count * bits[kind] / 8 for count, kind in used) == nbytes


def row(**speeds: list[float]) -> Row:
    """A decode row with 10 GB/s of bandwidth."""
    return Row("m", 2, "decode", 0, speeds={key.replace("_", " "): value for key, value in speeds.items()},
               limits=[10e9, 12e9, 8e9])


def test_ratio_is_paired_and_to_the_better_peer():
    """The peer is the one with the higher median; ratios are taken round by round."""
    made = row(own=[30.0, 20.0, 40.0], llama_gcc=[10.0, 10.0, 10.0], llama_clang=[20.0, 10.0, 20.0])
    assert "own" == made.own
    assert "llama clang" == made.peer
    assert [1.5, 2.0, 2.0] == made.ratios
    item = report.entry(made, {}, (100_000_000, 1))
    assert (2.0, 1.5, 2.0) == (item["ratio"], item["ratio_low"], item["ratio_high"])
    assert 0.3 == item["share_of_limit"]
    assert "2.00 (1.50..2.00)" in report.line(item)


def test_row_without_a_peer_or_without_us():
    """An engine that refuses a row leaves it without ratio, and the table and chart still come out."""
    items = [report.entry(made, {}, (1, 1)) for made in (row(own=[1.0], llama=[]), row(own=[], llama=[1.0]))]
    assert [None, None] == [item["ratio"] for item in items]
    assert all(report.line(item) for item in items)
    assert "<svg" in report.chart(items)


def test_chart_is_xml_with_a_bar_for_each_row():
    """The chart parses, and names that need escaping survive."""
    items = [report.entry(Row("a<b&c", 1, "prefill", 32, {"own": [ours], "peer": [1.0]}), {"dot_peak": 1e9}, (1, 1))
             for ours in (0.5, 3.0)]
    tree = ElementTree.fromstring(report.chart(items))  # noqa: S314  our own text
    texts = [node.text for node in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert 2 == texts.count("a<b&c 1t prefill 32")
    assert "0.50" in texts


@pytest.mark.parametrize(("speeds", "kind", "size", "expected"), [
    ([100.0, 50.0], "decode", 0, 30), ([1.0], "decode", 0, 4), ([1e6], "decode", 0, 64), ([800.0], "batch", 8, 60),
    ([1e6], "batch", 1, 160),
])
def test_sample_length(speeds, kind, size, expected):
    """The slowest engine's share takes about 0.6 s, within bounds."""
    assert expected == measure._steps(speeds, Row("m", 1, kind, size))


def test_process_answers_and_refuses():
    """A measured process answers in JSON, passes errors on, and may print what it likes."""
    code = ("import sys; sys.argv = ['x']\n"
            "from benchmarks.serving import serve\n"
            "class Echo:\n"
            "    def say(self, word):\n"
            "        print('noise')\n"
            "        return {'word': word}\n"
            "serve(Echo())")
    engine = process.Engine.__new__(process.Engine)
    engine.name = "echo"
    engine._process = subprocess.Popen([sys.executable, "-c", code], text=True, stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert {"word": "a"} == engine.ask("say", word="a")
    with pytest.raises(process.Refused, match="AttributeError"):
        engine.ask("nothing")
    assert {"word": "b"} == engine.ask("say", word="b")
    engine.close()


def test_given_build_must_exist(tmp_path):
    """A folder without the library is refused by name."""
    with pytest.raises(SystemExit, match=r"no libllama.so"):
        peer.given(f"mine={tmp_path}", tmp_path)


def test_blocks_cover_what_direct_reads_can(tmp_path):
    """Every whole 4096 bytes once, in order; the page cache is asked before and after a file is dropped from it."""
    for size, block in ((0, 4096), (4095, 4096), (1 << 20, 256 << 10), ((1 << 20) + 8195, 256 << 10)):
        found = list(disk.blocks(size, block))
        assert size // 4096 * 4096 == sum(nbytes for _, nbytes in found)
        assert [start for start, _ in found] == list(range(0, size // 4096 * 4096, block))
        assert all(nbytes % 4096 == 0 and nbytes <= block for _, nbytes in found)
    path = tmp_path / "f"
    path.write_bytes(bytes(10 * 4096))
    assert 10 == disk.resident_pages(path)
    disk.drop(path)
    assert 0 == disk.resident_pages(path)
    assert all(disk.read(path, disk.Way(kind, 2, 4096)) > 0 for kind in ("direct", "buffered", "ahead"))


def test_share_of_the_disk():
    """The bound is the way with the best median, whichever was best in a round; bytes a token times tokens a second."""
    found = disk.item({"a": [4e9, 1e9, 4e9], "b": [3e9, 5e9, 3e9]}, [2.0, 4.0, 3.0], 10**9, [1e9] * 3, [9.0] * 3)
    assert ("a", 4e9, 0.75) == (found["bound_by"], found["bound"], found["share_of_bound"])
    assert [0.5, 0.8, 0.75] == found["share_by_round"]
    assert "75% of the bound (50..80)" in disk.line(found)


def test_the_images_libraries_are_for_its_cpus(tmp_path, monkeypatch):
    """Elsewhere nothing is fetched or run, and the way out is named."""
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(SystemExit, match=r"x86_64; this machine is aarch64(?s:.*)--system-libraries"):
        libraries.python(Namespace(system_libraries=False, work=tmp_path))
    assert (sys.executable,) == libraries.python(Namespace(system_libraries=True, work=tmp_path))
    assert [] == list(tmp_path.iterdir())


def test_our_python_runs_on_the_images_libraries(tmp_path):
    """The same Python, with its packages, finds the libcrypto that the image's lock file names. Packages come from the
    machine's mirrors or the user's cache, as for images."""
    locked = next(line.split()[2] for line in (recipe.FOLDER / "packages.lock").read_text().splitlines()
                  if line.startswith("root libssl3t64 "))
    if platform.machine() != libraries.MACHINE:
        absent(f"a CPU that runs the image: {libraries.MACHINE}")
    code = "import sys, numpy; from appliance.secure import libcrypto; print(sys.prefix, libcrypto.load().version)"
    try:
        python = libraries.command(tmp_path)
    except ImageError as error:
        absent(f"the image's packages: {error}")
    done = subprocess.run([*python, "-c", code], capture_output=True, text=True, check=True)
    assert f"{sys.prefix} {locked.partition('-')[0]}" == done.stdout.strip()
    assert python == libraries.command(tmp_path)


@pytest.fixture
def program(monkeypatch, capsys):
    """Run a module of the benchmarks as a program: its exit code, and what it writes to standard error."""
    before = signal.getsignal(signal.SIGTERM)

    def run(module, *words):
        monkeypatch.setattr(sys, "argv", [module, *map(str, words)])
        capsys.readouterr()  # of what was prepared
        with pytest.raises(SystemExit) as end:
            commandline.run(importlib.import_module(f"benchmarks{module or '.__main__'}").main)
        return end.value.code, capsys.readouterr().err
    yield run
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("module", ["", ".memory"])
@pytest.mark.parametrize(("what", "says"), [
    ("broken", "bytes that remain"), ("noise", "GGUF"), ("mamba", "architecture is mamba"), ("sealed", "is sealed"),
    ("absent", "does not exist"), ("folder", "does not exist")])
def test_what_is_no_model_is_refused_in_words(module, what, says, tiny, tmp_path, program):
    """Before anything is built or measured, by name and without a traceback; nothing but the folder for it is made."""
    path = tmp_path / f"{what}.gguf"
    if what == "folder":
        path.mkdir()
    elif what == "mamba":
        models.make("tiny", tmp_path / "mamba", architecture="mamba").rename(path)
    elif what == "sealed":
        path = memory.sealed_model(str(tiny), tmp_path / "sealed")[0]
    elif what != "absent":
        path.write_bytes(tiny.read_bytes()[:5000] if what == "broken" else bytes(range(1, 200)))
    work = tmp_path / "work"
    code, said = program(module, path, "--work", work)
    assert 2 == code
    assert said.startswith(f"{path}"), said
    assert says in said
    assert "Traceback" not in said
    assert [] == [each for each in work.rglob("*") if each.name != "synthetic.key"]


@pytest.mark.parametrize("words", [
    ["", "--threads", "0"], ["", "--rounds", "0"], ["", "--kinds", "decod"], [".streaming", "--shares", "101"],
    [".streaming", "--requests", "0"], [".disk", "--rounds", "0"], [".disk", "--threads", "-1"],
    [".memory", "--limits", "x"], [".memory", "--prompt", "0", "--limits", "512,0"], [".memory", "--plain"],
    [".picolm", "--tokens", "1"], [".kernels", "--formats", "Q9"], [".kernels", "--rounds", "0"], ["", "-o", "{tmp}"],
    ["", "--target", "nope"],
], ids=" ".join)
def test_arguments_are_looked_at_first(words, tmp_path, program):
    """Bad usage is 2, with the argument's name."""
    module, *rest = (word.format(tmp=tmp_path) for word in words)
    code, said = program(module, *rest)
    assert 2 == code, said
    assert "error: " in said
    assert rest[0] in said


def test_a_file_of_ones_own_is_sealed_once_and_again_when_it_changed(tiny, tmp_path):
    """In a folder that was not there; the sealed file is of the bytes that the file has."""
    path, key = memory.sealed_model(str(tiny), tmp_path / "work")
    stamp = path.stat().st_mtime_ns
    assert (path, key) == memory.sealed_model(str(tiny), tmp_path / "work")
    assert stamp == path.stat().st_mtime_ns
    tiny.write_bytes(tiny.read_bytes()[:-1] + b"\1")
    memory._sha256.cache_clear()
    memory.sealed_model(str(tiny), tmp_path / "work")
    assert hashlib.sha256(tiny.read_bytes()).digest() == sealed.structure(path)[0].sha256


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_model_leaves_nothing(sent, tmp_path):
    """Making a model takes minutes; what was written until then is gone with the process."""
    with subprocess.Popen([sys.executable, "-m", "benchmarks.streaming", "1.1b", "--work", str(tmp_path)],
                          stderr=subprocess.PIPE, text=True, preexec_fn=usual_signals) as child:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("*.part")) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert list(tmp_path.glob("*.part"))
        child.send_signal(sent)
        said = child.communicate(timeout=600)[1]
    assert 128 + sent == child.returncode, said
    assert "Traceback" not in said
    assert [] == list(tmp_path.glob("1.1b*"))


def test_a_judge_learns_what_there_is_and_no_more():
    """A bit that shows in one feature is told; one that does not is told as often as not, with a bound that says so."""
    draw = np.random.default_rng(3)
    bits = (draw.random(4000) < 0.5).tolist()
    noise = draw.normal(size=(4000, 3))
    blind = judging.judge(noise.tolist(), bits)
    assert blind.share < blind.at_most < 0.53
    shown = [[*row, 5.0 + bit + 0.2 * draw.normal()] for row, bit in zip(noise.tolist(), bits, strict=True)]
    assert 0.97 < judging.judge(shown, bits).at_least
    middle = [[abs(draw.normal()) + 2 * (not bit) if draw.random() < 0.5 else -abs(draw.normal()) - 2 * (not bit)]
              for bit in bits]  # no threshold tells it
    assert 0.85 < judging.judge(middle, bits).share


@pytest.mark.parametrize(("trials", "right"), [(10, 5), (100, 50), (100, 97), (600, 290), (10, 0)])
def test_bounds_are_those_of_clopper_and_pearson(trials, right):
    """One-sided, at 95%: with the bound as its chance, so few right answers, or fewer, come in one of twenty cases."""
    upper = judging.bound(trials, right, upper=True)
    few = sum(math.comb(trials, count) * upper**count * (1 - upper)**(trials - count) for count in range(right + 1))
    assert 0.05 == pytest.approx(few, rel=1e-6)
    assert 1 - upper == pytest.approx(judging.bound(trials, trials - right, upper=False))
    assert 1.0 == pytest.approx(judging.bound(trials, trials, upper=True))


COUNTED = {"event": "requests.counted", "answered": {"/health": 2}, "refused": {"other": {"not_found": 1}}}
DONE = [{"event": "request.done", "request": "a"}, {"event": "request.refused", "request": "b"}]


@pytest.mark.parametrize(("heads", "lost"), [
    ([("a", "/tokenize", 200), ("b", "/tokenize", 400), ("c", "/health", 200), ("d", "other", 404)], []),
    ([("a", "/tokenize", 200)] * 2 + [(each, "/health", 200) for each in "cde"],
     ["/health: 3 without a record, 2 counted"]),
    ([("x", "/tokenize", 200)], ["/tokenize: 1 without a record, 0 counted"])])
def test_what_the_log_lacks_is_found(heads: list[books.Head], lost: list[str]) -> None:
    """A request that is neither recorded nor counted at its own endpoint is missing; started streams are no end."""
    assert lost == books.unrecorded(heads, [*DONE, {"event": "stream.started", "request": "x"}, COUNTED])


def test_faults_of_a_service_are_found() -> None:
    """An exception, a disk that failed, an answer that is no refusal of ours, an end that is none."""
    log = [{"event": "runtime.exception", "type": "OSError", "where": "asyncio"}, {"event": "sessions.failed"},
           {"event": "request.refused", "code": "internal_error", "endpoint": "/tokenize"}]
    assert ["1 times OSError in asyncio", "sessions.failed", "internal_error at /tokenize", "the log does not end"
            ] == books.faults(log)
    assert ["2 records dropped"] == books.faults([{"event": "audit.closed", "dropped": 2}])
    assert [] == books.faults([*DONE, {"event": "audit.closed", "dropped": 0}])


@pytest.mark.parametrize(("health", "first", "failed", "expected"), [
    ([1, 2, 100, 500], [20, 40, 0, 0], [], []), ([1, 2, 101, 101], [20, 40, 0, 0], [], ["health"]),
    ([1, 2, 3, 501], [21, 40, 0, 0], [], ["health", "first"]),
    ([1, 2, 3, 4], [20, 41, 0, 0], ["x"], ["served", "first"])])
def test_promises_of_a_case(health: list[float], first: list[float], failed: list[str], expected: list[str]) -> None:
    """Each bound holds up to its figure."""
    assert expected == siege.missed({"health_ms": health, "first_ms": first, "failed": failed,
                                     "usual_ms": [10.0, 20.0, 0.0, 0.0]})


def test_the_siege_asks_every_endpoint() -> None:
    """Each path of the API, by each of its methods, is among the mixed requests."""
    asked = {("GET", name_of(path.partition("?")[0])) for path in mixed.GETS}
    asked |= {("POST", name_of(path)) for path, _ in mixed.POSTS.values()}
    assert {(method, each.path) for each in ENDPOINTS for method in each.methods.split(", ") if method != "HEAD"
            } <= asked


def test_hostile_lists_are_refused(tmp_path: Path) -> None:
    """The list of the siege's tenants is in force; every body of its case is refused, each the next time as well."""
    model = tmp_path / "model.gguf"
    model.write_bytes(b"model")
    given = deployed.deployment(model, tmp_path, Path("/dev/none"))
    (tmp_path / "policy.hcl").write_text(given.text())
    policy = load(tmp_path / "policy.hcl").policy
    in_force = tenants.parse(given.listed, policy)
    assert 68 == len(in_force.tenants)
    for make in lists.LISTS:
        for number in range(2):
            body = make(number)
            assert len(body) < 1 << 20
            with pytest.raises(PolicyError):
                tenants.newer(body, policy, in_force)
