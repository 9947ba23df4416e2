"""A boot's findings on the model files of a policy, for people at a desk. They include tokenizers
and chat templates, which takes time and memory, and the longest context that fits."""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from appliance.boot.planning import budget, cache_accuracy, fitness
from appliance.boot.planning.budget import Division
from appliance.boot.planning.fitness import header, shape_of, template_refusals
from appliance.boot.planning.footprint import Share, SnapshotRoom, askers, read
from appliance.errors import ApplianceError, EngineError, ModelError
from appliance.models.catalogue import Catalogue, ModelFile
from appliance.models.file.gguf import GGUFFile
from appliance.policy.bind import path_text
from appliance.policy.explaining.checking import CheckResult
from appliance.policy.explaining.report import FullReport
from appliance.policy.hcl.diagnostics import Diagnostic
from appliance.policy.schema import Model, Policy
from appliance.text import tokenizer
from appliance.text.template import ChatTemplate, Fallback

MOST_POSITIONS = 1 << 40  # more than any model has


@dataclass(frozen=True, slots=True)
class Fitness:
    """The fate of a file here."""

    refusal: ApplianceError | None  # why it cannot run
    warnings: tuple[str, ...] = ()  # what is odd about one that can

    @property
    def runs(self) -> bool:
        """Whether it can run."""
        return self.refusal is None


def of_header(header: GGUFFile, *, template: str | None = None, fallback: Fallback = "refuse") -> Fitness:
    """The fitness of a file with this header. `template` and `fallback`: what a policy says of chat
    templates."""
    try:
        shape = shape_of(header)
        words = tokenizer.load(header.metadata)
        if words.vocab_size > shape.vocabulary:
            raise EngineError(f"the tokenizer has {words.vocab_size} tokens, the model {shape.vocabulary} rows")
        ChatTemplate.of_model(header.metadata, override=template, fallback=fallback)
    except ApplianceError as error:
        return Fitness(error)
    return Fitness(None, words.warnings)


def of_file(path: Path) -> Fitness:
    """The fitness of the file at `path`, plain or sealed, by what it says itself."""
    try:
        return of_header(header(ModelFile(path)))
    except ModelError as error:
        return Fitness(error)


def refusals(policy: Policy, catalogue: Catalogue,
             models: Sequence[Model] | None = None) -> Iterator[tuple[Model, ApplianceError]]:
    """The policy's models (or those of `models`) whose files cannot run here, and why. A file that
    is not there is not among them."""
    yield from fitness.refusals(policy, catalogue, models, also=lambda model, found: of_header(
        found, template=model.chat_template, fallback=model.chat_template_fallback).refusal)


def findings(checked: CheckResult, catalogue: Catalogue) -> Iterator[Diagnostic]:
    """A warning at each model of a policy whose file is there and cannot run here. The policy is as
    valid as before: files come and go."""
    if checked.policy is None:
        return
    report = FullReport(checked.positions.text)
    for model, error in refusals(checked.policy, catalogue):
        where = ("model", model.name, "file")
        text = fitness.description(model.name, catalogue.of(model).path, error, hint=False)
        report.add("warning", "model-file", text, checked.positions.span(where), fix=error.hint or "",
                   path=path_text(where))
    for each in warnings(checked.policy, catalogue):
        place = ("model", each.model.name, each.field)
        report.add("warning", each.code, f"model {each.model.name}: {each.text}", checked.positions.span(place),
                   fix=each.fix, path=path_text(place))
    yield from report.sorted()


def template_findings(checked: CheckResult) -> Iterator[Diagnostic]:
    """A note at each chat template of a policy that no model could use: no boot gets past it."""
    if checked.policy is None:
        return
    report = FullReport(checked.positions.text)
    for model, error in template_refusals(checked.policy):
        where = ("model", model.name, "chat_template")
        report.add("note", "unbootable", f"model {model.name}: {error.summary}", checked.positions.span(where),
                   fix=error.hint or "the boot refuses it; mend the template", path=path_text(where))
    yield from report.sorted()


@dataclass(frozen=True, slots=True)
class Concern:
    """A field of a model that does not do what people expect of it."""

    model: Model
    field: str  # of the model
    code: str
    text: str
    fix: str


def warnings(policy: Policy, catalogue: Catalogue, division: Division | None = None) -> Iterator[Concern]:
    """Models whose answers suffer from what the policy says, and how; and those of which no text is
    kept, by a division of memory: by default that of the policy's budget."""
    shares = (division or budget.divide(policy, catalogue, policy.tee.memory_budget_bytes)).shares
    for model in policy.models:
        file = catalogue.of(model)
        if os.path.isfile(file.path):  # noqa: PTH113 - it raises nothing
            try:
                text = cache_accuracy.warning(header(file).metadata, model.kv_cache)
            except ModelError:
                continue
            if text is not None:
                yield Concern(model, "kv_cache", "kv-cache", text, cache_accuracy.FIX)
            kept = snapshots(policy, catalogue, model, shares.get(model.name))
            if kept is not None and kept.lack is not None:
                yield Concern(model, "prefix_cache", "prefix-cache", kept.lack, f'size = "{kept.size}"')


def snapshots(policy: Policy, catalogue: Catalogue, model: Model, share: Share | None) -> SnapshotRoom | None:
    """The states of earlier texts of a model, for the policy's tenants; None where it keeps none.
    """
    tenants = askers(model, policy.tenants.tenants)
    return read(model, policy, catalogue).snapshots(share or Share(1, 1), max(tenants, 1))


def longest_context(policy: Policy, catalogue: Catalogue, model: Model, room: int) -> int | None:
    """The most positions of a slot of a model with which everything fits into `room`, whatever
    context and prompts the policy allows. None where the header says nothing usable, or nothing
    fits."""
    shape = read(model, policy, catalogue).shape
    if shape is None:
        return None
    fits = bisect.bisect_left(range(1, shape.context(MOST_POSITIONS) + 1), 1, key=lambda positions: int(
        budget.divide(_with_context(policy, model, positions), catalogue, room).refusal is not None))
    return fits or None


def _with_context(policy: Policy, model: Model, positions: int) -> Policy:
    """A policy whose model has so many positions, and prompts that fill them."""
    longer = model.model_copy(update={"context_length": positions})
    limits, prompt = policy.limits, positions - policy.limits.generation_tokens
    return policy.model_copy(update={
        "models": tuple(longer if each.name == model.name else each for each in policy.models),
        "limits": limits.model_copy(update={"prompt_tokens": max(limits.prompt_tokens, prompt)})})
