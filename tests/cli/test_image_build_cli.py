"""`appliance image build`: for which CPUs kernels are made, and what it says while it works."""

from __future__ import annotations

import pytest

from appliance.cli.image.image import kernel_targets
from appliance.cli.progress import Progress
from appliance.imaging.recipe.stages import Steps
from appliance.kernels.runtime import targets


def test_kernels_are_for_this_cpu_and_for_emulated_machines() -> None:
    """No word: the best target of this CPU, and AVX2. Names as they are given; `all` leaves none out."""
    assert {targets.detect().name, "avx2"} == set(kernel_targets([]))
    assert ("zen5", "portable") == kernel_targets(["zen5", "portable"])
    assert () == kernel_targets(["all"]) == kernel_targets(["amx", "all"])


def test_a_build_without_a_terminal_is_not_silent(capsys: pytest.CaptureFixture[str],
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    """Every ten seconds a line says which kernel it has reached; a step that ends says what came of it."""
    now = [0.0]
    monkeypatch.setattr("appliance.cli.progress.time.monotonic", lambda: now[0])
    with Progress() as progress, Steps(progress, progress.ended).step("kernels") as step:
        for done in range(1, 31):
            now[0] += 1.5
            progress(f"kernels avx2 product_{done}", done, 30)
        step.detail = "avx2"
    out, err = capsys.readouterr()
    assert ["  kernels avx2 product_7  7 of 30", "  kernels avx2 product_14  14 of 30"] == err.splitlines()[:2]
    assert 4 == len(err.splitlines())
    assert "avx2" in out


def test_a_step_that_tells_nothing_is_announced(capsys: pytest.CaptureFixture[str]) -> None:
    """At once, without a terminal as well."""
    with Progress() as progress:
        progress.begin("measurements: the image starts once")
    assert "  measurements: the image starts once\n" == capsys.readouterr().err
