"""An answer computed again: each of its tokens chosen anew by the pinned model, in passes as wide
as a prompt's."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.auditor import receipts
from appliance.codec.printable import quantity
from appliance.engine.decode.chain.ending import Ending
from appliance.engine.decode.generation import GenerationRequest
from appliance.engine.decode.sampler import Sampling
from appliance.engine.engine import Engine, EngineOptions
from appliance.engine.forward.packing import Packing
from appliance.engine.recheck import recheck
from appliance.errors import EngineError, NoteError
from appliance.families.extension import Extension
from appliance.families.tensors import roles_of
from appliance.kernels.runtime import table as kernel_table
from appliance.keys.providers import FileKey
from appliance.models.catalogue import ModelFile
from appliance.models.sources.resident import ResidentSource, open_resident
from appliance.models.sources.sealed_resident import open_sealed_resident
from appliance.policy.schema.sampling import PARAMETERS
from appliance.receipts.statement import ROPE_FACTOR, ROPE_ORIGINAL, Receipt


@dataclass(frozen=True)
class Replay:
    """The outcome of a replay. `wrong`: the number of the first token that the model does not
    choose, from 0, and the token that it chooses; None if all are right."""

    tokens: int
    wrong: tuple[int, int | None] | None
    masks: tuple[bytes | None, ...]  # of each token: which ones were allowed, a bit for each; None: all
    text: str
    prompt: tuple[int, ...] = ()  # that the model read; healing takes tokens back
    rope: Extension | None = None  # positions beyond those of the file
    target: str = ""  # whose kernels computed it


def request(opening: Mapping[str, Any]) -> tuple[GenerationRequest, list[int]]:
    """Return the request of an opening without its constraint, and the answer's tokens. Raises
    NoteError if it has no tokens, as where the policy forbids to tell them."""
    if "tokens" not in opening:
        raise NoteError("receipt: its opening has no tokens, so nothing can be computed again",
                        hint="the policy redacts, or keeps counts from clients; its auditor has them: "
                        "--auditor-key")
    try:
        prompt, chosen = receipts.tokens(opening)
        said = dict(opening["sampling"])
        bias = {int(token): float(value) for token, value in said["logit_bias"].items()}
        breakers = tuple(tuple(int(token) for token in each) for each in said["dry_breakers"])
        numbers = {each.name: said[each.name] for each in PARAMETERS}
        sampling = Sampling(**numbers, samplers=tuple(said["samplers"]), seed=int(opening["seed"]), logit_bias=bias,
                            dry_breakers=breakers)
        ending = Ending.of(opening["ends"]) if "ends" in opening else Ending()
        return GenerationRequest(tuple(prompt), int(opening["max_tokens"]), sampling, tuple(opening["stop"]),
                                 ending=ending), chosen
    except (ValueError, LookupError, TypeError, AttributeError):
        raise NoteError("receipt: its opening is not in form") from None


def replay(receipt: Receipt, opening: Mapping[str, Any], path: Path, *, key: Path | None = None,
           threads: int | None = None, target: str | None = None,
           progress: Callable[[int, int], None] = lambda done, total: None) -> Replay:
    """Compute an answer again on the model in a file, which must be the one of the receipt. `key`:
    of a sealed file. `target`: the CPU target whose kernels compute it, by default the best of this
    CPU. NoteError, ModelError, EngineError."""
    asked, chosen = request(opening)
    table, rope = kernel_table.load(target), _rope(receipt)
    with ExitStack() as stack:
        source = _opened(receipt, path, key, table, progress)
        stack.callback(source.close)
        engine = stack.enter_context(Engine.open(source, EngineOptions(
            context_length=len(asked.prompt_ids) + max(asked.max_tokens, len(chosen)), slots=1,
            kv_cache=receipt.sampling.kv_cache, rope=rope, threads=threads), kernels=table))
        return dataclasses.replace(check(engine, asked, chosen, opening.get("constraint")), rope=rope,
                                   target=table.target.name)


def _rope(receipt: Receipt) -> Extension | None:
    """Return the positions beyond those of the file that the answer was computed with."""
    said = receipt.sampling.settings
    if ROPE_FACTOR not in said:
        return None
    return Extension(float(said[ROPE_FACTOR]), int(said.get(ROPE_ORIGINAL, 0)) or None)


def _opened(receipt: Receipt, path: Path, key: Path | None, table: kernel_table.KernelTable,
            progress: Callable[[int, int], None]) -> ResidentSource:
    pin, file = bytes.fromhex(receipt.model.sha256), ModelFile(path)
    header = receipt.model.sealed_header_sha256
    if key is None:
        return open_resident(path, pin, progress, interleave=Packing(table), parse=file.parse, roles=roles_of)
    with FileKey(key).key() as secret:
        return open_sealed_resident(path, secret.data, header_sha256=None if header is None else bytes.fromhex(header),
                                    sha256=pin, progress=progress, layout=file.layout, roles=roles_of)


def check(engine: Engine, asked: GenerationRequest, chosen: list[int], grammar: str | None) -> Replay:
    """Compute an answer again on an engine that is open. `grammar`: of its constraint. Raises
    EngineError if it ends elsewhere."""
    if grammar is not None:
        asked = GenerationRequest(asked.prompt_ids, asked.max_tokens, asked.sampling, asked.stop,
                                  constraint=engine.constraints.again(grammar))
    masks, text, count, prompt = list[bytes | None](), "", 0, tuple(engine.generation(asked).prompt_ids)
    for advance in recheck(engine, asked, chosen):
        if advance.error is not None or advance.token != chosen[count]:
            return Replay(count, (count, advance.token), tuple(masks), text, prompt)
        masks.append(advance.mask)
        text, count = text + advance.text, count + 1
        if advance.finish_reason is not None:
            break
    if count != len(chosen):
        raise EngineError(f"the answer ends after {quantity(count, 'token')}, and the receipt has {len(chosen)}",
                          code="replay-ended")
    return Replay(count, None, tuple(masks), text, prompt)


def plain(opening: Mapping[str, Any], found: Replay) -> dict[str, Any]:
    """Return the answer in the form that `examples/plain_engine.py` reads."""
    said = {name: opening[name] for name in ("tokens", "sampling")}
    said |= {"prompt_tokens": list(found.prompt), "seed": int(opening["seed"])}
    if found.rope is not None:
        said |= {"rope": {"factor": found.rope.factor, "original_context": found.rope.original}}
    if any(found.masks):
        said |= {"masks": [mask and base64.b64encode(mask).decode() for mask in found.masks[:len(opening["tokens"])]]}
    return said
