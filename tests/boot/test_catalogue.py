"""Each model file's header is parsed once in a boot, and what is loaded has the header of the bytes that were verified.
"""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from appliance.boot.planning.footprint import Share
from appliance.boot.running import load as models
from appliance.errors import FormatError, PinError, UnsupportedError
from appliance.models.catalogue import Catalogue, ModelFile
from appliance.models.file import gguf
from appliance.models.sealed import reader as sealed
from appliance.policy import load
from appliance.sealing import sealing
from tests.support import forked, server
from tests.support.demo_model import demo_model
from tests.support.engines import kernels
from tests.support.environment import unmeasured
from tests.support.ggufs import STRING, Tensor, build, kv
from tests.support.sealed_models import KEY

SEALED = """sealed_header_sha256 = "{header}"
  key {{
    provider = "file"
    path     = "{key}"
  }}
  {more}"""

# The interpreter tells of every call, in every thread, under whatever name the function was imported or bound.
COUNTED = """
import contextlib, json, sys, threading
from pathlib import Path
from appliance.boot.checks import Operator
from appliance.boot.sequence import prepare
from appliance.models.file import gguf
from appliance.policy import load

parsed = []

def watch(frame, event, argument):
    if event == "call" and frame.f_code is gguf.parse.__code__:
        size = frame.f_locals["size"]
        parsed.append(len(frame.f_locals["buffer"]) if size is None else size)

policy, folders = Path(sys.argv[1]), tuple(map(Path, sys.argv[2:]))
with contextlib.ExitStack() as closing:
    threading.setprofile(watch)
    sys.setprofile(watch)
    booted = prepare(load(policy), closing, operator=Operator(log_sink=policy.with_name("log")), model_folders=folders)
    sys.setprofile(None)
    print(json.dumps({"parsed": parsed, "kept": {name: each.residency for name, each in booted.models.items()}}))
"""


def _sealed_block(folder: Path, name: str, plain: Path, more: str) -> str:
    made = sealing.seal(plain, folder / f"{name}.sealed", KEY, tile_size=16384)
    pins = SEALED.format(header=made.header_sha256.hex(), key=folder / "key", more=more)
    return server.MODEL.format(name=name, file=f"{name}.sealed", sha256=made.sha256.hex(), more=pins)


def test_each_header_is_parsed_once_in_a_boot(tiny_model: Path, tmp_path: Path) -> None:
    """Of the demo model, of a sealed model with a draft, and of the draft, which is streamed."""
    (tmp_path / "key").touch(0o600)
    (tmp_path / "key").write_text(KEY.hex())
    helper = tmp_path / "helper.gguf"
    helper.write_bytes(tiny_model.read_bytes() + bytes(32))
    policy = server.write_policy(tmp_path, {"demo": demo_model()}, model="context_length = 256")
    policy.write_text(policy.read_text()
                      + _sealed_block(tmp_path, "tiny", tiny_model, 'draft_model = "helper"')
                      + _sealed_block(tmp_path, "helper", helper, "streaming_decrypt = true"))
    done = forked.run([str(policy), str(demo_model().parent)], unmeasured(), program=COUNTED)
    assert 0 == done.returncode, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert ["demo", "helper", "tiny"] == sorted(found["kept"])
    assert found["kept"]["helper"].startswith("streamed")
    assert sorted(path.stat().st_size for path in (demo_model(), tiny_model, helper)) == sorted(found["parsed"])


def _renamed(tiny_model: Path) -> bytes:
    """The tiny model by another name, as long as its own."""
    body = tiny_model.read_bytes()
    name = gguf.parse(body).metadata["general.name"]
    assert isinstance(name, str)
    return body.replace(name.encode(), name[::-1].encode() if name != name[::-1] else b"x" * len(name), 1)


@pytest.mark.parametrize("resident", [None, 0])
def test_a_disk_that_lied_about_the_header(resident: int | None, tiny_model: Path, tmp_path: Path) -> None:
    """A file that showed another header to the checks is loaded by the one that has the pin; without the pin it is
    refused, though the checks saw the right one."""
    loaded = load(server.write_policy(tmp_path, {"tiny": tiny_model}, model='streaming_decrypt = "auto"'))
    [model] = loaded.policy.models
    path, right, other = tmp_path / "m.gguf", tiny_model.read_bytes(), _renamed(tiny_model)
    given = models.Loading(loaded.policy.limits, kernels=kernels(), threads=1, share=Share(1, 64, resident))
    path.write_bytes(other)
    file = Catalogue({"tiny": path}).of(model)
    assert gguf.parse(other).metadata["general.name"] == file.gguf.metadata["general.name"]
    path.write_bytes(right)
    with closing(models.load(model, file, given)) as running:
        assert gguf.parse(right).metadata["general.name"] == running.source.metadata["general.name"]
    file = Catalogue({"tiny": path}).of(model)
    assert file.gguf is file.gguf
    with closing(models.load(model, file, given)) as running:
        assert file.gguf is running.source.gguf
    path.write_bytes(other)
    with pytest.raises(PinError):
        models.load(model, file, given)


def test_a_sealed_file_is_known_by_its_header(tiny_model: Path, tmp_path: Path) -> None:
    """The layout of one sealing says nothing of another, and a file with another header than pinned is not parsed."""
    for name in ("a", "b"):
        sealing.seal(tiny_model, tmp_path / name, KEY, tile_size=16384)
    headers = {name: sealed.structure(tmp_path / name)[0] for name in ("a", "b")}
    file = ModelFile(tmp_path / "a")
    assert file.gguf is file.layout(headers["a"])[0]
    assert file.tiling is file.layout(headers["a"])[1]
    assert file.gguf is not file.layout(headers["b"])[0]
    with pytest.raises(PinError):
        _ = ModelFile(tmp_path / "a", headers["b"].digest).gguf
    with pytest.raises(FormatError, match="not sealed"):
        _ = ModelFile(tiny_model, headers["a"].digest).gguf


def test_bytes_that_are_not_known_are_parsed(tiny_model: Path) -> None:
    """The header that is remembered is that of the very bytes, and of a file of the same size; nothing is remembered
    before somebody asked."""
    body, file = tiny_model.read_bytes(), ModelFile(tiny_model)
    assert file.parse(body) is not file.gguf
    assert file.parse(body) is file.gguf
    nbytes = file.gguf.data_offset
    assert file.parse(body[:nbytes], len(body)) is file.gguf
    assert file.parse(body + b"\0") is not file.gguf
    assert file.parse(_renamed(tiny_model)) is not file.gguf
    with pytest.raises(FormatError):
        file.parse(body[:nbytes - 1])
    with pytest.raises(FormatError):
        file.parse(body[:nbytes // 2], len(body))


def test_what_does_not_run_is_never_handed_on(tmp_path: Path) -> None:
    """A header with a format that does not run here is told to checks, and refused to those who load."""
    path = tmp_path / "m.gguf"
    path.write_bytes(build([kv("general.architecture", STRING, "llama")], [Tensor("a", 40, (64,), bytes(36))]))
    file = ModelFile(path)
    assert "NVFP4" == file.gguf.tensors["a"].format.name
    for refused in (lambda: file.supported, lambda: file.tiling, lambda: file.parse(path.read_bytes())):
        with pytest.raises(UnsupportedError, match="NVFP4"):
            refused()


def test_models_share_a_file(tiny_model: Path, tmp_path: Path) -> None:
    """Two models of one file with the same pins read its header once."""
    policy = load(server.write_policy(tmp_path, {"a": tiny_model, "b": tiny_model})).policy
    catalogue = Catalogue({"a": tiny_model, "b": tiny_model})
    assert catalogue.of(policy.models[0]) is catalogue.of(policy.models[1])
