"""A boot's findings on the model files of a policy, for people at a desk. They include tokenizers
and chat templates, which takes time and memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from appliance.boot.planning import cache_accuracy, fitness
from appliance.boot.planning.fitness import header, shape_of, template_refusals
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
    for model, text in warnings(checked.policy, catalogue):
        where = ("model", model.name, "kv_cache")
        report.add("warning", "kv-cache", f"model {model.name}: {text}", checked.positions.span(where),
                   fix=cache_accuracy.FIX, path=path_text(where))
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


def warnings(policy: Policy, catalogue: Catalogue) -> Iterator[tuple[Model, str]]:
    """Models whose answers suffer from what the policy says, and how."""
    for model in policy.models:
        file = catalogue.of(model)
        if os.path.isfile(file.path):  # noqa: PTH113 - it raises nothing
            try:
                text = cache_accuracy.warning(header(file).metadata, model.kv_cache)
            except ModelError:
                continue
            if text is not None:
                yield model, text
