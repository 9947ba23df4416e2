"""One prompt through one model of a policy, without a service: what `appliance infer` does.

The policy holds here as it does for a request: pin, sampling bounds, limits; and a policy that this
version does not enforce as a whole is refused.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from appliance.boot import checks
from appliance.boot.planning import budget, fitness
from appliance.boot.prompt_cache import PromptCache
from appliance.boot.running.load import Loading, RunningModel, load
from appliance.constraint.spec import JsonSchema
from appliance.engine.batch.sequence import Sequence
from appliance.engine.decode.generation import GenerationRequest
from appliance.engine.decode.sampler import Sampling
from appliance.engine.decode.seeds import seed_of
from appliance.engine.engine import STATEFUL
from appliance.engine.forward.forward import attention_names
from appliance.errors import CapacityError, EngineError, ModelError, PolicyError, TemplateError, UnsupportedError
from appliance.families.extension import Extension
from appliance.kernels.layouts.shapes import SHAPES
from appliance.kernels.runtime import table as kernel_table
from appliance.keys import policy_keys
from appliance.models.catalogue import Catalogue, ModelFile
from appliance.policy import Policy, bounds, unenforced
from appliance.policy.explaining.checking import load as load_policy
from appliance.policy.schema import Model
from appliance.policy.schema.sampling import BREAKERS
from appliance.text.breakers import sequences
from appliance.text.template import NO_TEMPLATE, has_template

Progress = Callable[[str, int, int], None]
"""Called with "compiling" or "loading", what is done and what there is to do."""


@dataclass(frozen=True)
class Ask:
    """The prompt to run, and how. None stands for the policy's default (of the seed: a random one).
    """

    prompt: str
    raw: bool = False
    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)  # other parameters, by the names of the API
    schema: Mapping[str, Any] | bool | None = None  # a JSON Schema that the answer is to meet
    choice: int = 0  # the number of the answer among several to the prompt, which have seeds of their own
    suffix: str | None = None  # the text after the answer, by the model's own tokens; where `raw`
    begun: str | None = None  # what the answer has said already; unless `raw`


@dataclass(frozen=True)
class Answer:
    """The answer, and how it came. Times in seconds."""

    model: str
    prompt_tokens: tuple[int, ...]
    tokens: tuple[int, ...]  # without the token that ended the answer
    text: str
    finish_reason: str
    sampling: Sampling
    warnings: tuple[str, ...]  # about the model's tokenizer, and a prompt with a token twice
    load_seconds: float
    prompt_seconds: float  # until the first token
    token_seconds: float  # of each further token
    negative_tokens: tuple[int, ...] = ()  # of the negative prompt, where the sampling is guided
    masks: tuple[bytes | None, ...] = ()  # of each token: which ones were allowed, a bit for each; None: all
    rope: Extension | None = None  # positions beyond those of the model's file
    cached_tokens: int | None = None  # of the prompt, that came from a file; None where none was named


class Session:
    """A loaded model, to be closed."""

    def __init__(self, policy: Policy, running: RunningModel, draft: RunningModel | None, load_seconds: float) -> None:
        self._policy, self._running, self._draft, self._load_seconds = policy, running, draft, load_seconds
        self._cache: PromptCache | None = None

    def keep_in(self, path: Path, key: Path | None = None) -> None:
        """Take keys and values of prompts from a file, and put them there, sealed under the key in
        another file: by default beside it, with `.key` at its end. StateError and ModelKeyError
        where one of them cannot be used, UnsupportedError for a model with states."""
        engine = self._running.engine
        if engine.architecture.stateful:
            raise UnsupportedError(STATEFUL.format("its texts cannot be kept in a file"), hint="leave --cache out")
        self._cache = PromptCache(path, key or path.with_name(path.name + ".key"), self._running.pin, engine.page)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.ExitStack() as closing:  # all of it, whatever goes wrong with one; the last entered goes first
            if self._cache is not None:
                closing.callback(self._cache.close)
            if self._draft is not None:
                closing.callback(self._draft.close)
            closing.callback(self._running.close)

    def _ids(self, ask: Ask) -> tuple[int, ...]:
        """The tokens of a prompt. TemplateError for a chat with a model that takes none, and
        EngineError for a suffix with a model that has no tokens for it."""
        words, template = self._running.tokenizer, self._running.template
        if ask.raw and ask.suffix is not None:
            ids = words.around(words.encode(ask.prompt, parse_special=True), words.encode(ask.suffix))
            if ids is None:
                raise EngineError(f"model {self._running.name}: has no tokens for what stands between two texts")
            return tuple(ids)
        if ask.raw:
            return tuple(words.encode(ask.prompt, add_special=True, parse_special=True))
        if template is None:
            raise _no_chats(self._running.name)
        messages = [{"role": "user", "content": ask.prompt}]
        if ask.begun is not None:
            text = template.render_open([*messages, {"role": "assistant", "content": ask.begun}])
            return tuple(template.tokens(text, words))
        return tuple(template.encode(messages, words))

    def _negative_ids(self, ask: Ask, ids: tuple[int, ...]) -> tuple[int, ...]:
        """The tokens of the negative prompt, which in a chat is what the system says."""
        words, template, text = self._running.tokenizer, self._running.template, ask.sampling.get("negative_prompt", "")
        if ask.raw or template is None:
            return tuple(words.encode(text, add_special=True, parse_special=True)) or ids[-1:]
        said = [{"role": "system", "content": text}] if text else []
        return tuple(template.encode([*said, {"role": "user", "content": ask.prompt}], words))

    def warnings(self, ask: Ask) -> tuple[str, ...]:
        """The oddities of the model's tokenizer and the prompt, though it runs."""
        words = self._running.tokenizer
        most = self._policy.limits.generation_tokens
        clamped = ask.max_tokens is not None and ask.max_tokens > most
        return (*words.warnings, *(words.doubled(self._ids(ask)) if ask.raw else ()),
                *([f"the policy allows {most} tokens; {ask.max_tokens} were asked for"] if clamped else ()))

    def run(self, ask: Ask, on_text: Callable[[str], None] = lambda text: None) -> Answer:
        """Run a prompt; `on_text` gets the answer's text as it comes. CapacityError and EngineError
        for the request, ConstraintError for its schema."""
        limits, model = self._policy.limits, self._running
        ids = self._ids(ask)
        sampling = _sampling(model, ask)
        negative = self._negative_ids(ask, ids) if sampling.guided else ()
        if (longest := max(len(ids), len(negative))) > limits.prompt_tokens:
            raise CapacityError(f"the prompt has {longest} tokens; the policy allows {limits.prompt_tokens}",
                                hint="send a shorter prompt, or raise limits.prompt_tokens")
        most = limits.generation_tokens if ask.max_tokens is None else ask.max_tokens
        if most > limits.generation_tokens and limits.oversized_max_tokens == "clamp":
            most = limits.generation_tokens
        if most > limits.generation_tokens:
            raise CapacityError(f"{most} tokens are asked for; the policy allows {limits.generation_tokens}",
                                hint="ask for fewer, or raise limits.generation_tokens")
        watched: list[Sequence] = []
        parts, masks = list[str](), list[bytes | None]()
        reason = ""
        constraint = None if ask.schema is None else model.engine.constraints.compile(JsonSchema(ask.schema))
        request = GenerationRequest(ids, most, sampling, constraint=constraint, negative_ids=negative)
        for advance in model.engine.generate(
                request, observe=watched.append, shelf=None if self._cache is None else self._cache.shelf):
            parts.append(advance.text)
            on_text(advance.text)
            masks.append(advance.mask)
            reason = advance.finish_reason or reason
        timings, generation = watched[0].timings, watched[0].generation
        tokens = tuple(generation.tokens)
        return Answer(model.name, tuple(generation.prompt_ids), tokens, "".join(parts), reason, sampling,
                      self.warnings(ask), self._load_seconds, timings.prompt_seconds, timings.token_seconds, negative,
                      tuple(masks[:len(tokens)]) if any(masks) else (), model.engine.rope,
                      None if self._cache is None else watched[0].found)


def _no_chats(name: str) -> TemplateError:
    return TemplateError(f"model {name}: has no chat template, so it takes no chats; it continues a text",
                         code=NO_TEMPLATE, hint="add --raw; or give chat_template in the policy, or allow "
                         'chat_template_fallback = "chatml"')


def _check_template(model: Model, file: ModelFile) -> None:
    """Refuse a chat with a model that has no template, before it is loaded. An unreadable file is
    left to loading."""
    try:
        metadata = file.gguf.metadata
    except ModelError:
        return
    if not has_template(metadata, override=model.chat_template, fallback=model.chat_template_fallback):
        raise _no_chats(model.name)


def _sampling(model: RunningModel, ask: Ask) -> Sampling:
    """The policy's defaults, and what is asked within its bounds."""
    asked = {**ask.sampling, **({} if ask.temperature is None else {"temperature": ask.temperature})}
    asked.pop("negative_prompt", None)
    order, texts = asked.pop("samplers", None), asked.pop("dry_sequence_breakers", BREAKERS)
    try:
        values = bounds.numbers(model.policy.sampling, asked, order, free=ask.raw and ask.schema is None)
    except bounds.OutsideError as error:
        raise EngineError(str(error)) from None
    if values["dry_multiplier"] and "dry" in values["samplers"]:
        values["dry_breakers"] = sequences(model.tokenizer, texts)
    return Sampling(**values, seed=seed_of(secrets.randbits(63) if ask.seed is None else ask.seed, ask.choice))


def open_session(path: Path, name: str | None = None, *, folders: tuple[Path, ...] = (), threads: int | None = None,
                 chats: bool = False, progress: Progress = lambda step, done, total: None) -> Session:
    """Load one model of the policy at `path` (its only one when `name` is None). `chats`: it is to
    have a chat template. ApplianceError says why not."""
    begun = time.monotonic()
    loaded = load_policy(path)
    missing = [".".join(map(str, where)) for where, _ in unenforced(loaded.policy)]
    if missing:
        raise PolicyError(f"not enforced by this version: {', '.join(missing)}", code="not-enforced",
                          hint="leave these fields out")
    model = _choose(loaded.policy, name)
    table = kernel_table.load()
    chosen = [model, *([] if model.draft_model is None else [_choose(loaded.policy, model.draft_model)])]
    files = {each.name: resolve_model_path(loaded.policy, each.name, path.parent, folders) for each in chosen}
    if absent := "; ".join(checks.model_files(files)):
        raise ModelError(absent, code="model-unreadable", hint="give the folder that has it: --models DIR")
    catalogue = Catalogue(files)
    for each, error in fitness.refusals(loaded.policy, catalogue, chosen):
        raise type(error)(fitness.description(each.name, files[each.name], error, hint=False), hint=error.hint,
                          code=error.code)
    if chats:
        _check_template(model, catalogue.of(model))
    shares = budget.fitting(loaded.policy, catalogue, models=chosen, compiles=table.origin != "ahead").shares

    def opened(model: Model, draft: RunningModel | None) -> RunningModel:
        file = catalogue.of(model)
        _compile(table, file, progress)
        return load(model, file, Loading(
            loaded.policy.limits, lambda done, total: progress("loading", done, total),
            key=policy_keys.release([model]).get(model.name), kernels=table, threads=threads, draft=draft,
            share=shares[model.name], plaintext_budget=loaded.policy.tee.plaintext_budget_bytes
            - (0 if draft is None else draft.streamed_plaintext),
            sweeps=loaded.policy.privacy.memory_access == "oblivious"))

    draft = opened(chosen[1], None) if len(chosen) > 1 else None
    try:
        return Session(loaded.policy, opened(model, draft), draft, time.monotonic() - begun)
    except BaseException:
        if draft is not None:
            draft.close()
        raise


def _choose(policy: Policy, name: str | None) -> Model:
    names = [model.name for model in policy.models]
    if name is None and len(names) == 1:
        return policy.models[0]
    if name not in names:
        wrong = "the policy has more than one model" if name is None else f"the policy has no model {name!r}"
        raise PolicyError(wrong, hint=f"--model is one of: {', '.join(names)}", code="model-unknown")
    return policy.models[names.index(name)]


def resolve_model_path(policy: Policy, name: str, folder: Path, more: tuple[Path, ...] = ()) -> Path:
    """Where a model's file is: in the policy's folder, else in one of the folders given, else
    `build/models` of the working directory. The pin decides on whatever is found there."""
    return checks.find_models(policy, [folder, *more, Path("build/models")])[name]


def _kernel_names(formats: set[str]) -> tuple[str, ...]:
    """Every kernel that models of these block formats may need."""
    shapes = [SHAPES[name] for name in sorted(formats) if name in SHAPES]
    return ("lockstep_run", "lockstep_work", "lockstep_stop", "lockstep_spin", "step", "weigh_logits", "running_sums",
            "pick_pieces", *(f"{part}_{shape.suffix}" for shape in shapes for part in ("product", "gather")),
            *(f"quantise_{kind}" for kind in sorted({shape.activation for shape in shapes})),
            *sorted(attention_names("f16").values()))


def _compile(table: kernel_table.KernelTable, file: ModelFile, progress: Progress) -> None:
    """Make the kernels that the file's formats need; at once where they are prebuilt."""
    formats = {info.format.name for info in file.gguf.tensors.values()}
    names = [name for name in _kernel_names(formats) if name in table.names]
    for index, kernel in enumerate(names):
        progress("compiling", index, len(names))
        table.address(kernel)
    progress("compiling", len(names), len(names))
