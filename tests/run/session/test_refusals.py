"""Settings that contradict each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.run.session.refusals import require_consistent, require_reports
from pytest_ddpperf.settings import Settings


@pytest.mark.parametrize(
    ("settings", "said", "problem"),
    [
        (Settings(against_tests=True), "against_tests", "--ddpperf-against-tests is only for another revision, and"),
        (Settings(force_save=True), "force_save", "--ddpperf-force-save is only for saved results, and nothing is sa"),
        (Settings(against="main", baseline_set="a"), "baseline_set", "--ddpperf-against=main uses no baselines, but"),
        (Settings(calibrate=3, history=Path("runs.db")), "history", "ddpperf calibrate measures benchmarks side by"),
        (Settings(simulate=(8, 1024), budget=60.0), "budget", "ddpperf simulate measures nothing, but --ddpperf-budg"),
        (Settings(quick=True), "max_time", "--ddpperf-quick has its own limits and stores nothing, so "),
    ],
)
def test_an_option_without_effect_is_refused_on_the_command_line_and_allowed_in_the_ini_file(
    settings: Settings, said: str, problem: str
) -> None:
    with pytest.raises(SettingError) as caught:
        require_consistent(settings, [said])
    assert str(caught.value).startswith(problem)
    require_consistent(settings, [])


def test_options_given_with_the_option_that_they_belong_to_are_accepted() -> None:
    require_consistent(Settings(against="main", against_tests=True), ["against_tests"])
    require_consistent(Settings(against_setup="make"), ["against_setup"])  # builds the commit of a baseline, too
    require_consistent(Settings(save="default", force_save=True, baseline_set="a"), ["force_save", "baseline_set"])


def test_storing_a_quick_run_is_refused_wherever_it_is_asked_for() -> None:
    with pytest.raises(SettingError, match=r", so --ddpperf-save does not fit: give only one of the two options$"):
        require_consistent(Settings(quick=True, save="default"), [])


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"against": "HEAD"}, "ddpperf simulate measures nothing, but --ddpperf-against needs times"),
        ({"simulate_rank": 8}, "ddpperf simulate --rank=8: there is no such rank: with 8 ranks, give"),
    ],
)
def test_options_that_simulated_ranks_do_not_support_are_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingError) as caught:
        require_consistent(Settings(simulate=(8, 1024), **settings), [])
    assert str(caught.value).startswith(problem)
    require_consistent(Settings(simulate=(8, 1024), simulate_rank=7), [])


@pytest.mark.parametrize("file", ["out.txt", "-", "/dev/stdout"])
def test_two_reports_in_one_file_are_refused_unless_it_is_standard_output(tmp_path: Path, file: str) -> None:
    """The second one would replace the first."""
    require_reports((("text", Path(file)), ("text", Path(file))), tmp_path)
    both = (("text", Path(file)), ("markdown", Path(file)))
    if file == "out.txt":
        with pytest.raises(
            SettingError, match=r"^--ddpperf-report=markdown:out\.txt: the report text goes to the same file: "
        ):
            require_reports(both, tmp_path)
    else:
        require_reports(both, tmp_path)
