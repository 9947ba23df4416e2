"""`appliance plan-memory`, and the sum that a boot reckons: what each part takes, who gets how much."""

from __future__ import annotations

import json
import mmap
import random
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.boot.planning import budget, footprint, inspection, machine
from appliance.boot.planning import speed as planning
from appliance.boot.planning.footprint import activations_nbytes, widths
from appliance.boot.planning.rates import Rates
from appliance.boot.planning.residency import packed_nbytes, read_by_a_pass
from appliance.boot.planning.speed import speeds
from appliance.boot.running import load as models
from appliance.cli.main import main
from appliance.engine.forward.forward import ROWS, Forward
from appliance.engine.forward.kvcache import KVCache
from appliance.families.tensors import check_tensors
from appliance.kernels.runtime.threads import Pool
from appliance.keys import providers as keys
from appliance.models.catalogue import Catalogue, ModelFile
from appliance.models.file import gguf
from appliance.models.file.tiling import Tiling
from appliance.policy import Policy, load
from appliance.sealing import keyfile, sealing
from tests.support import family_models, server
from tests.support.engines import kernels, opened, running
from tests.support.environment import unmeasured, untraced
from tests.support.extent import examples, some
from tests.support.ggufs import F32, STRING, U32, Tensor, build, kv, kv_array
from tests.support.plain import open_resident
from tests.support.vocabularies import vocabulary_file

MIB = 1 << 20
TOKENS = "tokenizer.ggml.tokens"


def _policy(folder: Path, model: Path, how: str, **more: str) -> Policy:
    return load(server.write_policy(folder, {"tiny": model}, model=f"streaming_decrypt = {how}", **more)).policy


@pytest.mark.parametrize(("rows", "threads", "context"), [(512, 1, 512), (32, 3, 100), (256, 2, 64)])
def test_activations_are_what_a_pass_allocates(rows: int, threads: int, context: int) -> None:
    """The reckoned bytes are those of the buffers, and at most a huge page for each of them more."""
    with running("mixed", threads=threads, context=context) as engine:
        shape, source = engine.architecture, engine._source
        pool = Pool(kernels(), threads)
        plan = check_tensors(shape, source.tensors)
        forward = Forward(source, shape, plan, KVCache(shape, 1, context), kernels(), pool, rows=rows)
        kinds = widths(source.tensors, source.roles)
        said = activations_nbytes(shape, kinds, rows=rows, threads=threads, context=context)
        pool.close()
    assert forward.nbytes <= said + (64 << 10) + 16 * 8 * rows  # tables of a call, lines that buffers are rounded to
    assert said <= forward.nbytes + 10 * (2 << 20)


@pytest.mark.parametrize("name", family_models.MODELS)
def test_activations_of_families(name: str) -> None:
    """The same for a model of each family, and the bytes of a slot are those of the cache."""
    with opened(family_models.model(name)) as source, Pool(kernels(), 2) as pool:
        shape = family_models.architecture(name)
        cache = KVCache(shape, 1, family_models.CONTEXT)
        forward = Forward(source, shape, check_tensors(shape, source.tensors), cache, kernels(), pool, rows=32)
        said = activations_nbytes(shape, widths(source.tensors, source.roles), rows=32, threads=2,
                                  context=family_models.CONTEXT)
        assert footprint.slot_nbytes(shape, family_models.CONTEXT) == cache.nbytes
        forward.release()
        cache.release()
    assert forward.nbytes <= said + (96 << 10) + 16 * 8 * 32
    assert said <= forward.nbytes + 10 * (2 << 20)


def _least(policy: Policy, files: dict[str, Path]) -> int:
    """Bytes below which nothing runs."""
    found = budget.divide(policy, Catalogue(files), 1)
    assert found.refusal is not None
    return found.nbytes


@pytest.mark.parametrize(("tokens", "requests", "rows"), [
    (8, 1, 32), (33, 1, 64), (33, 4, 256), (4096, 1, ROWS)])
def test_no_pass_is_wider_than_prompts(tokens: int, requests: int, rows: int, tmp_path: Path, tiny_model: Path) -> None:
    """What all prompts together may have bounds a pass, with room for more."""
    policy = _policy(tmp_path, tiny_model, '"auto"',
                     limits=f"prompt_tokens = {tokens}\n  concurrent_requests = {requests}")
    assert rows == budget.divide(policy, Catalogue({"tiny": tiny_model}), None).shares["tiny"].rows


def test_everything_grows_with_the_room(tmp_path: Path, tiny_model: Path) -> None:
    """From the least on, more memory never means narrower passes, fewer slots or less that is resident; and the sum
    is never above the room."""
    files = {"tiny": tiny_model}
    policy = _policy(tmp_path, tiny_model, '"auto"', limits='concurrent_requests = 8\n  request_size = "64KiB"')
    least, before = _least(policy, files), (0, 0, 0)
    seen = set()
    for room in range(least, least + 400 * MIB, 7 * MIB):
        found = budget.divide(policy, Catalogue(files), room, threads=2)
        share = found.shares["tiny"]
        resident = 1 << 60 if share.resident is None else share.resident
        assert None is found.refusal
        assert found.nbytes <= room
        assert before[0] <= share.rows
        assert before[1] <= share.slots <= 8
        before = (share.rows, share.slots, resident)
        seen.add(before)
    assert (ROWS, 8, 1 << 60) in seen
    assert len(seen) > 3


def _keys(layers: int, head: int, kv_heads: int, hidden: int, words: int) -> list[bytes]:
    keys = [kv("general.architecture", STRING, "llama"), kv("llama.attention.layer_norm_rms_epsilon", F32, 1e-5),
            kv_array(TOKENS, STRING, [f"w{number}" for number in range(words)])]
    return keys + [kv(f"llama.{name}", U32, value) for name, value in (
        ("block_count", layers), ("context_length", 2048), ("embedding_length", head * kv_heads * 8),
        ("feed_forward_length", hidden), ("attention.head_count", 8 * kv_heads),
        ("attention.head_count_kv", kv_heads), ("rope.dimension_count", head), ("vocab_size", words))]


def _header(path: Path, numbers: random.Random) -> Path:
    """A file with the header of a model of drawn shape, and nothing in it."""
    layers, head, kv_heads = numbers.randint(1, 40), numbers.choice([32, 64, 128]), numbers.choice([1, 2, 4, 8])
    width, hidden, words = head * kv_heads * 8, 256 * numbers.randint(1, 40), numbers.choice([300, 5000, 30000])
    matrices = [("token_embd", words, width), ("output", words, width)]
    for layer in range(layers):
        matrices += [(f"blk.{layer}.{name}", rows, columns) for name, rows, columns in (
            ("attn_q", width, width), ("attn_k", head * kv_heads, width), ("attn_v", head * kv_heads, width),
            ("attn_output", width, width), ("ffn_gate", hidden, width), ("ffn_up", hidden, width),
            ("ffn_down", width, hidden))]
    keys, tensors, at = _keys(layers, head, kv_heads, hidden, words), [], 0
    for name, rows, columns in matrices:
        tensors.append(Tensor(f"{name}.weight", 12, (columns, rows), b"", at))  # Q4_K
        at += rows * columns // 256 * 144
    with path.open("wb") as file:
        head_nbytes = file.write(build(keys, tensors))
        file.truncate(head_nbytes + at)
    return path


LONGEST = (2, 4, 5, 7, 11)  # some ten seconds each; the others have as many models, with drafts and without


@pytest.mark.parametrize("seed", [
    pytest.param(seed, marks=pytest.mark.soak) if seed in LONGEST else seed for seed in range(12)])
@untraced()
def test_nothing_becomes_less_with_more_room(seed: int, tmp_path: Path, tiny_model: Path) -> None:
    """Of one, two or three models of any shape, whatever may be streamed, sealed or not, with drafts and without: from
    the least room to one for all, no model has fewer rows, slots, weights or records in memory than with less room; no
    sum is above its room, and with room for all there is all."""
    numbers = random.Random(seed)
    names = "abc"[:1 + seed % 3]
    files = {name: _header(tmp_path / f"{name}.gguf", numbers) for name in names}
    requests = numbers.choice([1, 2, 7, 32, 64])
    policy = load(server.write_policy(tmp_path, dict.fromkeys(names, tiny_model), limits=(
        f'concurrent_requests = {requests}\n  prompt_tokens = {numbers.choice([16, 400, 1500])}\n'
        f'  request_size = "{numbers.choice([16, 1024])}KiB"'))).policy
    policy = policy.model_copy(update={"models": tuple(
        model.model_copy(update={"streaming_decrypt": numbers.choice([True, False, "auto", "auto"]),
                                 "kv_cache": numbers.choice(["f16", "q4"]),
                                 "draft_model": "b" if model.name == "a" and "b" in names and seed % 2 else None})
        for model in policy.models)})
    prints = [replace(budget.read(model, policy, Catalogue(files)), sealed=bool(numbers.getrandbits(1)))
              for model in policy.models]

    def divide(room: int | None) -> budget.Division:
        return budget._Divider(policy, prints, room, False, 2).division()

    least, most = divide(1).nbytes, divide(None)
    rooms = {least + number * (2 * most.nbytes - least) // 150 for number in some(range(150), 30)}
    rooms |= {round(least * (3 * most.nbytes / least) ** numbers.random()) for _ in range(examples(20, 100))}
    steps = {step.room + more for step in some(list(budget._Divider(policy, prints, None, False, 2)._steps(least)), 60)
             for more in (-1, 0)}
    before = [(0, 0, 0, 0)] * len(prints)
    for room in sorted(rooms | {room for room in steps if room >= least}):
        found = divide(room)
        assert found.refusal is None
        assert found.nbytes <= room
        given = [found.shares[each.name] for each in prints]
        now = [(share.rows, share.slots, each.weights if share.resident is None else share.resident,
                share.kept) for share, each in zip(given, prints, strict=True)]
        for old, new in zip(before, now, strict=True):
            assert all(one <= other for one, other in zip(old, new, strict=True)), (room, before, now)
        before = now
    assert divide(8 * most.nbytes).shares.keys() == most.shares.keys()
    assert [(share.rows, share.slots, share.resident) for share in divide(64 * most.nbytes).shares.values()] == [
        (share.rows, share.slots, share.resident) for share in most.shares.values()]


def test_as_many_requests_as_a_policy_may_allow(tmp_path: Path, tiny_model: Path) -> None:
    """With room for them all, 4096 requests share the slots that all have a row in each pass, and the engine opens
    with as many as the sum has."""
    policy = _policy(tmp_path, tiny_model, "false", limits="prompt_tokens = 8\n  generation_tokens = 8\n"
                     "  concurrent_requests = 4096")
    share = budget.divide(policy, Catalogue({"tiny": tiny_model}), None, threads=1).shares["tiny"]
    running = models.load(policy.models[0], ModelFile(tiny_model), models.Loading(
        policy.limits, kernels=kernels(), threads=1, share=share))
    slots = running.engine.slots
    running.close()
    assert (64, 64) == (share.slots, slots)


def test_unknown_memory_keeps_nobody_short(tmp_path: Path, tiny_model: Path) -> None:
    """Where neither policy nor machine says how much there is, all is resident and every slot is made."""
    policy = _policy(tmp_path, tiny_model, '"auto"', limits="concurrent_requests = 5")
    found = budget.divide(policy, Catalogue({"tiny": tiny_model}), None)
    assert (footprint.Share(5, ROWS, None), None) == (found.shares["tiny"], found.room)


@pytest.mark.parametrize(("how", "streamed"), [("true", True), ("false", False), ('"auto"', False)])
def test_the_lines(how: str, streamed: bool, tmp_path: Path, tiny_model: Path) -> None:
    """A streamed model has buffers and encrypted embeddings in place of weights; what is resident needs no less."""
    policy = _policy(tmp_path, tiny_model, how)
    found = planning.plan(policy, Catalogue({"tiny": tiny_model}), 1 << 40)
    names = [line.what for line in found.lines]
    assert streamed == any("tile buffers" in name for name in names)
    assert streamed != any("resident weights" in name for name in names)
    [share] = found.shares.values()
    assert share == replace(share, slots=policy.limits.concurrent_requests, rows=ROWS)


def test_what_a_draft_takes(tmp_path: Path, tiny_model: Path) -> None:
    """A model that another drafts for has buffers and slots of that one, too."""
    plain = _policy(tmp_path, tiny_model, "false")
    [model] = plain.models
    helped = plain.model_copy(update={"models": (
        model.model_copy(update={"draft_model": "small"}), model.model_copy(update={"name": "small"}))})
    files = {"tiny": tiny_model, "small": tiny_model}

    def lines(policy: Policy) -> dict[str, int]:
        return {line.what: line.nbytes for line in budget.divide(policy, Catalogue(files), None, threads=1).lines}

    alone, both = lines(plain), lines(helped)
    assert _of(alone, "tiny: activations") < _of(both, "tiny: activations") < 2 * _of(alone, "tiny: activations")
    assert _of(alone, "tiny: keys") * (32 + 4) // 32 == _of(both, "tiny: keys")


def _of(lines: dict[str, int], start: str) -> int:
    return _only(nbytes for what, nbytes in lines.items() if what.startswith(start))


def _only(values: Iterable[int]) -> int:
    [value] = values
    return value


def test_speed_rises_with_what_is_resident(tmp_path: Path, tiny_model: Path) -> None:
    """Resident weights are read at the rate of memory, streamed ones through file and cipher: by hand."""
    rates = Rates(memory=8e9, cipher=4e9, cache=2e9, disk=1e9)
    files = {"tiny": tiny_model}
    policy = _policy(tmp_path, tiny_model, "false")
    [model] = policy.models
    tiles = footprint.read(model, policy, Catalogue(files)).tiles
    weights = sum(map(packed_nbytes, read_by_a_pass(tiles)))
    [resident] = speeds(policy, Catalogue(files), budget.divide(policy, Catalogue(files), None), rates)
    assert resident.tokens_per_second == pytest.approx(8e9 / weights)
    policy = _policy(tmp_path, tiny_model, "true")
    [streamed] = speeds(policy, Catalogue(files), budget.divide(policy, Catalogue(files), 1 << 40), rates)
    assert (weights, 0, False) == (streamed.streamed_nbytes, streamed.kept_nbytes, streamed.from_disk)
    assert streamed.tokens_per_second == pytest.approx(1 / (weights / 8e9 + weights / 4e9 + weights / 2e9))
    [slow] = speeds(policy, Catalogue(files), budget.divide(policy, Catalogue(files), _least(policy, files)), rates)
    assert slow.from_disk
    assert slow.tokens_per_second == pytest.approx(1 / (weights / 8e9 + weights / 4e9 + weights / 1e9))


@pytest.mark.parametrize(("streaming", "ahead"), [("true", False), ('"auto"', True)])
def test_plain_files_are_read_ahead_where_plaintext_is_not_bounded(streaming: str, ahead: bool, tmp_path: Path,
                                                                   tiny_model: Path) -> None:
    """What is read ahead of a plain file is plaintext beside that of `plaintext_budget`, so that rules it out."""
    policy, files = _policy(tmp_path, tiny_model, streaming, limits='request_size = "64KiB"'), {"tiny": tiny_model}
    division = budget.divide(policy, Catalogue(files), _least(policy, files))
    assert (0, ahead) == (division.shares["tiny"].resident or 0, division.shares["tiny"].drop)


@pytest.mark.parametrize(("sizes", "how", "expected"), [
    ((8e9, 0, 0), {}, 1.0), ((0, 8e9, 0), {}, 2 + 2.0), ((0, 0, 8e9), {}, 1 + 2 + 4.0),
    ((0, 0, 8e9), {"from_disk": True}, 1 + 2 + 8.0), ((0, 0, 8e9), {"from_disk": True, "ahead": True}, 8.0),
    ((8e9, 8e9, 4e9), {"from_disk": True, "ahead": True}, 1 + 4 + 4.0)])
def test_seconds_of_a_token(sizes: tuple[int, int, int], how: dict[str, bool], expected: float) -> None:
    """A disk that is read ahead of use takes its time beside that of the tiles that come from it, and of no others."""
    rates = Rates(memory=8e9, cipher=4e9, cache=2e9, disk=1e9)
    assert expected == planning.seconds_of_a_token(*sizes, rates, **{"from_disk": False, "ahead": False} | how)


def test_reading_a_request_is_in_the_sum(tmp_path: Path, tiny_model: Path) -> None:
    """48 times the longest body, and 200 bytes for each letter that the longest prompt can have, once for all requests;
    where loading takes more, that."""
    files, longest = {"tiny": tiny_model}, max(map(len, gguf.parse(tiny_model.read_bytes()).metadata[TOKENS]))
    for size, prompt, expected in ((2 * MIB, 10, 96 * MIB + 200 * 10 * longest), (MIB, 1 << 20, 248 * MIB),
                                   (1024, 1, 24 * MIB)):
        found = budget.divide(_policy(tmp_path, tiny_model, "false", limits=f'prompt_tokens = {prompt}\n  '
                                      f'concurrent_requests = 9\n  request_size = "{size >> 10}KiB"'),
                              Catalogue(files), None)
        assert expected == _of({line.what: line.nbytes for line in found.lines}, "loading, then reading")


@pytest.mark.parametrize(("logged", "padded", "entries", "event"), [
    (0, False, 0, 0), (0, True, 0, 4096), (20, False, 21 * 16, 0), (20, True, 21 * 16, (768 << 10) + 4096)])
def test_answers_are_in_the_sum(logged: int, padded: bool, entries: int, event: int, tmp_path: Path,
                                tiny_model: Path) -> None:
    """For each that may be under way its tokens, no more than a slot has, with their text and log-probabilities."""
    longest = max(map(len, gguf.parse(tiny_model.read_bytes()).metadata[TOKENS]))
    for tokens, expected in ((300, 300), (1000, 512)):
        found = budget.divide(load(server.write_policy(
            tmp_path, {"tiny": tiny_model}, model=f"sampling {{ max_logprobs = {logged} }}",
            privacy='timing_padding {\n first_token = "50ms"\n total = "1s"\n }\n'
                    'size_padding = "4KiB"' if padded else "",
            limits=f"generation_tokens = {tokens}\n  concurrent_requests = 9")).policy,
            Catalogue({"tiny": tiny_model}), None)
        assert 9 * (expected * (160 + 4 * longest + entries) + event) == _of(
            {line.what: line.nbytes for line in found.lines}, "answers, 9 x")


WORDS = """
import gc, sys
from pathlib import Path
from appliance.text import tokenizer
from appliance.text.template import ChatTemplate
from appliance.models.file import gguf
from appliance.models.file.disk import RandomFile
from tests.support.vocabularies import tokenizer_of

def own(field):
    return 1024 * int(Path("/proc/self/status").read_text().split(field + ":")[1].split()[0])

tokenizer_of("gpt-2").encode("Hello")  # what the process takes anyway
ChatTemplate.from_metadata({}, override="{% for m in messages %}{{ m.content }}{% endfor %}", fallback="chatml")
gc.collect()
before = own("RssAnon"), own("VmHWM")
if sys.argv[2] == "file":
    with RandomFile(Path(sys.argv[1])) as file:
        head, found = gguf.read(file.read_into, file.size)
    del head
    words = tokenizer.load(found.metadata)
    words.encode("Hello world")
    gc.collect()
    print(own("RssAnon") - before[0])
else:
    template = ChatTemplate.from_metadata({}, override=Path(sys.argv[2]).read_text(), fallback="chatml")
    print(own("VmHWM") - before[1])
"""


def _takes(*words: object) -> int:
    vocabulary_file("gpt-2")  # which the child reads
    done = subprocess.run([sys.executable, "-c", WORDS, *map(str, words)], capture_output=True, text=True, check=True,
                          env=unmeasured())
    return int(done.stdout)


@pytest.mark.parametrize("name", ["llama-bpe", "gpt-2", "llama-spm", "gemma-4"])
def test_what_words_take(name: str, tmp_path: Path) -> None:
    """Of a real vocabulary, metadata and tokenizer take no more of a process than the sum has for them."""
    path = vocabulary_file(name)
    whole = inspection.header(path)
    tokens = whole.metadata[TOKENS]
    assert isinstance(tokens, Sequence)
    said = footprint.words_nbytes(Tiling(whole, path.stat().st_size, 1 << 20, gaps=False), {}, len(tokens), 0)
    assert _takes(path, "file") <= said


@pytest.mark.parametrize("text", ["{{" + "1+" * 40 + "1}}", "{{[1,1,1,1,1,1,1,1]}}", "{{m.role}}x"])
def test_what_a_chat_template_takes(text: str, tmp_path: Path, tiny_model: Path) -> None:
    """The longest that is allowed, of the policy, is compiled within what the sum has for it."""
    begin = "{%for m in messages%}{{m.content}}{%if false%}"
    body = begin + text * (((1 << 18) - 100) // len(text)) + "{%endif%}{%endfor%}"
    (tmp_path / "template").write_text(body)
    sums = []
    for template in ("", f"chat_template = {json.dumps(body)}"):
        policy = load(server.write_policy(tmp_path, {"tiny": tiny_model}, model=template)).policy
        lines = budget.divide(policy, Catalogue({"tiny": tiny_model}), None).lines
        sums.append(_of({line.what: line.nbytes for line in lines}, "tiny: vocabulary, names, vectors"))
    assert _takes("-", tmp_path / "template") <= sums[1] - sums[0]


def test_vectors_count_with_their_pages(tmp_path: Path) -> None:
    """Each vector has locked pages of its own, however short it is: what is locked when a model is opened is no more
    than the sum has for them."""
    def locked() -> int:
        found = re.search(r"VmLck:\s+(\d+) kB", Path("/proc/self/status").read_text())
        return 1024 * int(found[1]) if found else 0

    sums, taken = [], []
    for count in (1, 301):
        path = tmp_path / "m.gguf"
        path.write_bytes(build(_keys(1, 32, 1, 256, 300), [
            Tensor(f"v{number}", 0, (1,), bytes(4)) for number in range(count)]))
        found = budget.divide(_policy(tmp_path, path, "false"), Catalogue({"tiny": path}), None)
        sums.append(_of({line.what: line.nbytes for line in found.lines}, "tiny: vocabulary, names, vectors"))
        before = locked()
        with open_resident(path):
            taken.append(locked() - before)
    assert 300 * mmap.PAGESIZE <= taken[1] - taken[0] <= sums[1] - sums[0]


def test_a_file_without_matrices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A header that names vectors alone is reckoned like any other, whatever memory there is; the command says what
    the file lacks."""
    path = tmp_path / "m.gguf"
    path.write_bytes(build([kv("general.architecture", STRING, "llama")], [Tensor("norm", 0, (8,), bytes(32))]))
    written = server.write_policy(tmp_path, {"tiny": path}, model='streaming_decrypt = "auto"',
                                  limits='request_size = "64KiB"')
    found = [budget.divide(load(written).policy, Catalogue({"tiny": path}), memory << 20).refusal is None
             for memory in range(90, 170)]
    assert sorted(found) == found
    assert {False, True} == set(found)
    assert 2 == main(["plan-memory", str(written), "--no-speed"])
    assert "llama.block_count is missing" in capsys.readouterr().err


def test_the_table(tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What fits exits with 0 and a speed; what does not, with 1 and the arithmetic; JSON has the bytes."""
    policy = str(server.write_policy(tmp_path, {"tiny": tiny_model}, model="streaming_decrypt = false"))
    assert 0 == main(["plan-memory", policy, "--models", str(tiny_model.parent), "--memory", "4096"])
    said = capsys.readouterr().out
    assert "tiny: resident weights" in said
    assert "4,096 MiB  there are" in said
    speed = re.search(r"tiny: about ([0-9,.]+) tokens/s for one request", said)
    assert speed is not None
    assert float(speed[1].replace(",", "")) > 100  # a model of some hundred KiB; with an exponent there is no match
    for memory in ("0", "-5", "1.5", "99999999999999"):
        with pytest.raises(SystemExit) as refused:
            main(["plan-memory", policy, "--models", str(tiny_model.parent), "--memory", memory])
        assert (2, True) == (refused.value.code, "expected a whole number from 1 to" in capsys.readouterr().err)
    assert 1 == main(["plan-memory", policy, "--models", str(tiny_model.parent), "--memory", "64", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert 64 << 20 == told["room"]
    assert "are needed, there are 64 MiB" in told["refusal"]
    assert told["nbytes"] == sum(line["nbytes"] for line in told["lines"])
    assert [] == told["speeds"]


def test_what_is_kept_comes_from_no_disk(tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The line of a sealed model's speed counts what the plan keeps encrypted, and names a source of the rest alone."""
    key = tmp_path / "key"
    keyfile.make(key)
    with keys.FileKey(key).key() as secret:
        made = sealing.seal(tiny_model, tmp_path / "tiny.sealed", secret.data)
    path = server.write_policy(tmp_path, {"tiny": tiny_model}, model="streaming_decrypt = true\nsealed_header_sha256 = "
                               f'"{made.header_sha256.hex()}"\nkey {{\nprovider = "file"\npath = "{key}"\n}}')
    path.write_text(path.read_text().replace(tiny_model.name, "tiny.sealed"))
    for memory in (["--memory", "4096"], ["--memory", str(-(-_least(load(path).policy, {
            "tiny": tmp_path / "tiny.sealed"}) >> 20))]):
        assert 0 == main(["plan-memory", str(path), *memory])
        said = capsys.readouterr().out
        assert 0 == main(["plan-memory", str(path), *memory, "--json", "--no-speed"])
        kept = json.loads(capsys.readouterr().out)["shares"]["tiny"]["kept"]
        assert (memory[1] == "4096") == (kept > 0) == (", for which it reads " not in said), said


@pytest.mark.parametrize("missing", [1, 1 << 19, (1 << 20) - 1])
def test_what_is_needed_is_more_than_there_is(missing: int, tmp_path: Path, tiny_model: Path) -> None:
    """A refusal never says that as much is there as is needed; and what it says is needed suffices."""
    policy, files = _policy(tmp_path, tiny_model, "true"), {"tiny": tiny_model}
    least = _least(policy, files)
    said = budget.divide(policy, Catalogue(files), least - missing).refusal or ""
    words = said.split()  # "N MiB are needed, there are M MiB: ..."
    needs, has = int(words[0]), int(words[6])
    assert has < needs
    assert budget.divide(policy, Catalogue(files), needs << 20).refusal is None


def test_a_plan_for_more_than_the_budget_says_so(tmp_path: Path, tiny_model: Path,
                                                 capsys: pytest.CaptureFixture[str]) -> None:
    """`--memory` answers what if; a boot by this policy stays within `memory_budget`, whatever the machine has."""
    policy = server.write_policy(tmp_path, {"tiny": tiny_model})
    policy.write_text(policy.read_text().replace("tee {", 'tee {\n  memory_budget = "512MiB"', 1))
    for memory, noted in (("512", False), ("513", True), ("1024", True)):
        assert 0 == main(["plan-memory", str(policy), "--models", str(tiny_model.parent), "--memory", memory,
                          "--no-speed"])
        assert noted == ("no more than the policy's memory_budget, 512 MiB" in capsys.readouterr().err)


def test_a_model_that_is_not_there_fits_nowhere(tmp_path: Path, tiny_model: Path,
                                                capsys: pytest.CaptureFixture[str]) -> None:
    """Without the file of a model there is no plan, and no exit code that says that it fits."""
    policy = str(server.write_policy(tmp_path, {"tiny": tiny_model}))
    assert 2 == main(["plan-memory", policy, "--models", str(tmp_path / "none"), "--json"])
    said = capsys.readouterr()
    assert {"exit_code", "code", "reason", "hint"} == json.loads(said.out).keys()
    assert f"{tiny_model.name}: No such file or directory" in said.err


@pytest.mark.parametrize(("nbytes", "why"), [
    (12, "the number of tensors"), (0, "byte 0: this is an empty file"), (-100, "the end of tensor")])
def test_a_damaged_model_fits_nowhere(nbytes: int, why: str, tmp_path: Path, tiny_model: Path,
                                      capsys: pytest.CaptureFixture[str]) -> None:
    """A model file that was cut off has no plan: what remains of it says nothing of the memory that it will take."""
    policy = str(server.write_policy(tmp_path, {"tiny": tiny_model}))
    cut = tmp_path / "cut" / tiny_model.name
    cut.parent.mkdir()
    cut.write_bytes(tiny_model.read_bytes()[:nbytes])
    assert 2 == main(["plan-memory", policy, "--models", str(cut.parent)])
    said = capsys.readouterr()
    assert "" == said.out
    assert f"model tiny: {cut}: " in said.err
    assert why in said.err


GREEDY = """
from appliance.boot.planning import machine
kept = bytearray(8 << 20)
machine.limit_growth(64 << 20)
more = bytearray(16 << 20)
try:
    bytearray(256 << 20)
except MemoryError:
    print("refused")
"""


def test_a_refusal_tells_that_the_file_is_damaged(tmp_path: Path, tiny_model: Path) -> None:
    """Whose header cannot be read counts with its size: who has too little memory for that learns why it counts so."""
    policy = _policy(tmp_path, tiny_model, '"auto"')
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF" + bytes(100))
    with damaged.open("r+b") as file:
        file.truncate(1 << 40)
    found = budget.divide(policy, Catalogue({"tiny": damaged}), 1 << 34)
    assert found.refusal is not None
    assert f"1,048,576 MiB tiny: the whole file ({damaged}: byte 4: the version is 0" in found.refusal


def test_the_kernel_refuses_more_than_the_budget() -> None:
    """Once all is loaded, a process cannot take more than what the budget leaves."""
    assert "refused\n" == subprocess.run([sys.executable, "-c", GREEDY], capture_output=True, text=True,
                                         check=True).stdout


def test_hold_counts_what_the_budget_leaves(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What may still come: requests, and what nobody was given. Without a budget there is no limit."""
    seen: list[int] = []
    monkeypatch.setattr(machine, "limit_growth", seen.append)
    policy = _policy(tmp_path, tiny_model, "false")
    found = budget.divide(policy, Catalogue({"tiny": tiny_model}), None)
    budget.hold(policy, found)
    assert [] == seen
    for spare in (0, 50 * MIB):
        limit = found.nbytes + spare
        budget.hold(policy.model_copy(update={"tee": policy.tee.model_copy(update={"memory_budget_bytes": limit})}),
                    found)
    assert [50 * MIB] == [seen[1] - seen[0]]
    assert _of({line.what: line.nbytes for line in found.lines}, "requests") < seen[0]


THREADS = """
import asyncio, threading
from appliance.boot.planning import machine
from appliance.http.loop import ServiceLoop, start_threads

threading.stack_size(8 << 20)
threads = start_threads(6)
machine.limit_growth(4 << 20)
try:
    threading.Thread(target=print).start()
except RuntimeError:
    print("no stack")
over = threading.Event()

async def work():
    asyncio.get_running_loop().call_later(1, over.set)
    await asyncio.gather(*(asyncio.to_thread(over.wait) for _ in range(64)))

with asyncio.Runner(loop_factory=lambda: ServiceLoop(threads)) as runner:
    runner.run(work())
print("all", threading.active_count())
"""


def test_the_event_loop_needs_no_stack() -> None:
    """A process that can have no other thread does everything that an event loop leaves to threads, and ends."""
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, check=False)
    assert ("no stack\nall 1\n", "") == (done.stdout, done.stderr)
