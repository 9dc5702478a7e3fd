"""What the command line and the ini file ask for."""

from __future__ import annotations

import pytest

from pytest_ddpperf.plugin import PROBE, SETTINGS
from pytest_ddpperf.run.session.probe import Probe
from pytest_ddpperf.settings import Settings


@pytest.mark.parametrize(
    ("options", "quick"), [([], True), (["--ddpperf-save"], False), (["--ddpperf-launches=3"], False)]
)
def test_the_command_line_overrides_ddpperf_quick_of_the_ini_file(
    pytester: pytest.Pytester, options: list[str], *, quick: bool
) -> None:
    pytester.makeini("[pytest]\nddpperf_quick = true")
    assert pytester.parseconfigure(*options).stash[SETTINGS].quick is quick


@pytest.mark.parametrize(("probe", "seconds"), [(None, (600.0, 600.0)), (Probe("1" * 40), (None, Settings().max_time))])
def test_a_probe_of_a_bisection_has_no_budget(
    pytester: pytest.Pytester, probe: Probe | None, seconds: tuple[float | None, float]
) -> None:
    """It measures one test at one commit, for as long as a benchmark may take."""
    pytester.makeini("[pytest]\nddpperf_budget = 10min")
    config = pytester.parseconfig()
    if probe is not None:
        config.stash[PROBE] = probe
    config._do_configure()
    settings = config.stash[SETTINGS]
    config._ensure_unconfigure()
    assert (settings.budget, settings.max_time) == seconds


@pytest.mark.parametrize(
    ("ini", "said", "seconds"),
    [
        ("ddpperf_max_time = 20", ["--ddpperf-budget=5min"], (300.0, 300.0)),
        ("ddpperf_max_time = 20", ["--ddpperf-budget=5min", "--ddpperf-max-time=30"], (300.0, 30.0)),
        ("ddpperf_max_time = 20\nddpperf_budget = 10min", [], (600.0, 20.0)),
    ],
)
def test_a_budget_of_the_command_line_is_in_place_of_the_limit_in_the_ini_file(
    pytester: pytest.Pytester, ini: str, said: list[str], seconds: tuple[float, float]
) -> None:
    pytester.makeini(f"[pytest]\n{ini}")
    config = pytester.parseconfigure(*said)
    settings = config.stash[SETTINGS]
    assert (settings.budget, settings.max_time) == seconds
