"""What a check of a policy says of its model files and chat templates."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.boot.planning import cache_accuracy, fitness
from appliance.models.catalogue import Catalogue
from appliance.policy.bind import path_text
from appliance.policy.explaining.checking import Checked
from appliance.policy.explaining.report import FullReport
from appliance.policy.hcl.diagnostics import Diagnostic


def findings(checked: Checked, catalogue: Catalogue) -> Iterator[Diagnostic]:
    """A warning at each model of a policy whose file is there and cannot run here. The policy is as
    valid as before: files come and go."""
    if checked.policy is None:
        return
    report = FullReport(checked.positions.text)
    for model, error in fitness.refusals(checked.policy, catalogue, whole=True):
        where = ("model", model.name, "file")
        report.add("warning", "model-file", fitness.described(model.name, catalogue.of(model).path, error, hint=False),
                   checked.positions.span(where), fix=error.hint or "", path=path_text(where))
    for model, text in fitness.warnings(checked.policy, catalogue):
        where = ("model", model.name, "kv_cache")
        report.add("warning", "kv-cache", f"model {model.name}: {text}", checked.positions.span(where),
                   fix=cache_accuracy.FIX, path=path_text(where))
    yield from report.sorted()


def template_findings(checked: Checked) -> Iterator[Diagnostic]:
    """A note at each chat template of a policy that no model could use: no boot gets past it."""
    if checked.policy is None:
        return
    report = FullReport(checked.positions.text)
    for model, error in fitness.template_refusals(checked.policy):
        where = ("model", model.name, "chat_template")
        report.add("note", "unbootable", f"model {model.name}: {error.summary}", checked.positions.span(where),
                   fix=error.hint or "the boot refuses it; mend the template", path=path_text(where))
    yield from report.sorted()
