"""The command in a repository of seventeen commits, on made-up probes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpperf.cli.bisect import command
from pytest_ddpperf.cli.bisect.target import require_known
from pytest_ddpperf.cli.command import main
from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.run.session.probe import Outcome, Probe
from tests.cli.bisect.outcomes import counted, outcome, timed
from tests.cli.running import Run
from tests.shell import shown

Git = Callable[..., str]
SummaryData = Callable[[int, int], Outcome]


@dataclass(frozen=True)
class CheckRequest:
    """What a probe was run with: the test it is for, the commit to compare with, and the arguments for pytest."""

    test: str | None
    against: str
    arguments: tuple[str, ...]


@pytest.fixture
def probes(repository: Path, git: Git, monkeypatch: pytest.MonkeyPatch) -> Callable[[SummaryData], list[CheckRequest]]:
    """Takes what tells the outcome of holding one numbered commit against another; gives back what was asked for."""
    numbers = {git("rev-parse", f"c{i}"): i for i in range(17)}
    asked: list[CheckRequest] = []

    def install(told: SummaryData) -> list[CheckRequest]:
        def run(probe: Probe, against: str, arguments: Sequence[str]) -> Outcome:
            asked.append(CheckRequest(probe.test, against, tuple(arguments)))
            return told(numbers[probe.measured], numbers[against])

        monkeypatch.setattr(command, "run_probe", run)
        return asked

    return install


@pytest.fixture
def bisected(probes: Any, printed: Run) -> Callable[..., str]:
    """Searches the commits after c0, or after ``good``; takes what says the outcome, as ``probes`` does."""

    def run(told: SummaryData, *more: str, good: str = "c0", status: int = 0) -> str:
        probes(told)
        return printed("bisect", "t.py", "--good", good, *more, status=status)

    return run


def calls(culprit: int, broken: frozenset[int] = frozenset()) -> SummaryData:
    def told(now: int, then: int) -> Outcome:
        if now in broken:
            return outcome(broken="rank 1 raised ImportError: half done")
        return outcome(counted(2.0 + (then >= culprit), 2.0 + (now >= culprit)))

    return told


def test_the_first_bad_commit_is_found_and_reported(probes: Any, git: Git, printed: Run) -> None:
    asked = probes(calls(6))
    out = printed("bisect", "t.py", "--good", "c0", "--bad", "c16", "-k", "small")
    found, before = git("rev-parse", "c6"), git("rev-parse", "c5")
    assert f"{found} is the first bad commit\n  c6\n  Ada, 1970-01-01\n" in out
    told = "collective_calls: all_reduce 2 -> 3 calls per step"
    assert f"against {before[:7]}, which came before: {told}\n" in out
    assert out.endswith("  sure: counts have no noise\n")
    assert all(part in out for part in shown("bisect.md", "first bad commit").split("...\n"))
    assert asked[0] == CheckRequest(None, git("rev-parse", "c0"), ("t.py", "-k", "small"))
    assert {(one.arguments, one.test) for one in asked[1:]} == {(("t.py", "-k", "small"), "t.py::test_a")}
    assert len(asked) == 6


@pytest.mark.parametrize(
    "words",
    [
        ("--ddpperf-world-size", "4", "perf", "-k", "small or not large"),
        ("perf/test_a.py::test_b[x]", "more", "-x"),
        (),
    ],
)
def test_bisect_passes_unknown_arguments_to_pytest(probes: Any, git: Git, words: tuple[str, ...]) -> None:
    asked = probes(calls(6))
    half = len(words) // 2
    assert main(["bisect", *words[:half], "--good", "c0", *words[half:], "--bad=c16"]) == 0
    assert {one.arguments for one in asked} == {words}


def test_each_probe_is_reported_in_a_line(bisected: Any, git: Git) -> None:
    out = bisected(calls(6, frozenset({8})))
    short = {i: f"{git('rev-parse', f'c{i}')[:7]} c{i}" for i in range(17)}
    lines = [line for line in out.splitlines() if line.startswith(("good", "bad", "probe"))]
    assert lines == [
        f"good {short[0]}",
        f"bad  {short[16]}",
        f"probe 1 of about 4: {short[8]} ... skipped: rank 1 raised ImportError: half done",
        f"probe 2 of about 4: {short[7]} ... 2 -> 3 per step, bad",
        f"probe 3 of about 4: {short[3]} ... 2 -> 2 per step, good",
        f"probe 4 of about 4: {short[5]} ... 2 -> 2 per step, good",
        f"probe 5 of about 5: {short[6]} ... 2 -> 3 per step, bad",
    ]


def test_no_line_is_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch, bisected: Any) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    out = bisected(calls(6, frozenset({8})))
    assert max(map(len, out.splitlines())) <= 60
    assert " c8 ... \n  skipped: rank 1 raised ImportError: half done\n" in out


def test_the_duration_of_probes_is_estimated_before_the_first(bisected: Any) -> None:
    def told(now: int, then: int) -> Outcome:
        return outcome(timed(0.2 * (now >= 11) - 0.2 * (then >= 11)), seconds=40.0)

    out = bisected(told)
    each = "each measuring for 40 s to 2.7 min: 3.3 min to 13 min in all"
    assert f"\n16 commits to search, about 4 probes and one to confirm, {each}\n" in out
    assert out.partition("\nprobe 1 of about 4: ")[0].endswith(
        "up to 3 repetitions, each up to 4 times as long as the run before: at most 3.8 h for a probe\n"
        "these estimates come from the runs of good and bad; --ddpperf-max-time does not limit the probes\n"
    )


def test_if_commits_cannot_be_judged_the_answer_is_a_range(bisected: Any) -> None:
    out = bisected(calls(6, frozenset({4, 5})), status=1)
    assert "the first bad commit is one of these 3; all but the last could not be judged\n" in out
    assert [line.split()[-1] for line in out.partition("judged\n")[2].splitlines()[:3]] == ["c4", "c5", "c6"]


def test_a_commit_found_by_time_has_a_confidence(bisected: Any) -> None:
    out = bisected(lambda now, then: outcome(timed(0.1 * (now >= 11) - 0.1 * (then >= 11), error=0.01)))
    assert "... +10.0 % [95 % CI +7.4 .. +12.6] bad\n" in out
    assert "step_time: 40.0 ms -> 44.0 ms, +10.0 %" in out
    assert out.endswith("  98 % sure: the probability that any comparison was wrong is 2 %\n")


def test_a_commit_that_is_not_worse_than_the_commit_before_is_not_confirmed(bisected: Any) -> None:
    """Each commit is a little slower."""
    out = bisected(lambda now, then: outcome(timed(0.01 * (now - then))), status=1)
    assert " may be the first bad commit, but that was not confirmed\n" in out
    assert out.endswith(" alone, or a probe was wrong\n")


@pytest.mark.parametrize(
    ("confirmation", "said"),
    [
        pytest.param(outcome(broken="rank 0 raised"), "rank 0 raised", id="fails"),
        pytest.param(outcome(counted(2.0, 2.0)), "collective_calls: 2 -> 2 per step", id="contradicts"),
    ],
)
def test_a_commit_that_is_not_confirmed_has_no_confidence(bisected: Any, confirmation: Outcome, said: str) -> None:
    out = bisected(lambda now, then: confirmation if then == 5 else calls(6)(now, then), status=1)
    assert " may be the first bad commit, but that was not confirmed\n" in out
    assert f"which came before: {said}" in out
    assert "sure" not in out


def test_ends_that_are_too_uncertain_are_measured_again_and_reported_with_the_new_values(
    probes: Any, printed: Run
) -> None:
    told = iter([outcome(timed(0.1, error=0.02))])
    better = outcome(timed(0.08, error=0.001)), outcome(timed(0.0, error=0.001))
    asked = probes(lambda now, then: next(told, better[now < 11 or then >= 11]))
    out = printed("bisect", "t.py", "--good", "c0")
    assert "step_time: 40.0 ms -> 43.2 ms, +8.0 %" in out
    assert (
        "\nmeasuring good and bad again, up to 40 s a benchmark; --ddpperf-max-time does not limit this repetition\n"
        in out
    )
    assert [one.test for one in asked[:2]] == [None, "t.py::test_a"]


def test_ends_that_stay_too_uncertain_are_not_searched(probes: Any, printed: Run) -> None:
    asked = probes(lambda *_: outcome(timed(0.1, error=0.02)))
    out = printed("bisect", "t.py", "--good", "c0", status=1)
    assert "\ngood and bad do not differ clearly enough for a search: " in out
    assert " comparison is 6.5 %, and " in out
    assert "probe 1" not in out
    assert len(asked) == 4  # of the ends


def test_ends_whose_difference_is_undecided_cannot_be_distinguished(bisected: Any) -> None:
    told = bisected(lambda *_: outcome(timed(0.0, error=0.1)), status=1)
    assert "\nHEAD cannot be distinguished from c0: there is nothing to search for\n" in told


def test_an_end_that_cannot_run_is_reported(bisected: Any) -> None:
    assert bisected(lambda *_: outcome(broken="rank 0 raised"), status=1).endswith(
        "\nHEAD cannot be compared with c0: rank 0 raised\n"
    )


def both(one: Outcome, other: Outcome, **failures: str) -> Outcome:
    """The outcome of two tests."""
    second = [replace(result, test="t.py::test_b") for result in other.results]
    return Outcome((*one.results, *second), {f"t.py::{name}": why for name, why in failures.items()})


def test_benchmarks_that_could_not_be_compared_are_listed_after_the_result_of_the_others(bisected: Any) -> None:
    lacking = outcome(timed(0.0), lacking="rank 0 raised")
    told = both(lacking, outcome(timed(0.0), counted(2.0, 2.0)), test_b="not told", test_c="Skipped: not today")
    assert bisected(lambda *_: told, status=1).splitlines()[2:] == [
        "HEAD is not worse than c0: there is nothing to search for",
        "  t.py::test_b ddp: step_time: 40.0 ms -> 40.0 ms, +0.0 % [95 % CI -0.5 .. +0.5]",
        "  t.py::test_a ddp: not compared: revision 1234567 cannot run it: rank 0 raised",
        "  t.py::test_c: not compared: Skipped: not today",
    ]


def test_a_metric_that_no_compared_benchmark_has_is_reported_with_benchmarks_not_compared(bisected: Any) -> None:
    told = both(outcome(timed(0.0), lacking="rank 0 raised"), outcome(counted(2.0, 2.0)))
    assert bisected(lambda *_: told, "--metric", "step_time", status=1).splitlines()[2:] == [
        "HEAD cannot be compared with c0: no compared benchmark has the metric step_time",
        "  t.py::test_a ddp: not compared: revision 1234567 cannot run it: rank 0 raised",
    ]


def test_a_metric_that_nothing_has_is_an_error_of_one_line(probes: Any, complaint: Run) -> None:
    probes(lambda *_: outcome(timed(0.1)))
    said = "--metric final_loss: pytest t.py measured no such metric; give one of step_time"
    assert complaint("bisect", "t.py", "--good=c0", "--metric=final_loss") == f"ddpperf: error: {said}\n"


@pytest.mark.parametrize(
    ("metric", "hint"),
    [
        pytest.param("step-time", "did you mean step_time\\?$", id="misspelt"),
        pytest.param("colective_calls", "did you mean collective_calls\\?$", id="a count"),
        pytest.param("samples_imbalance", "did you mean sample_imbalance\\?$", id="an added one"),
        pytest.param("quality", "there are step_time, ", id="nothing like it"),
    ],
)
def test_a_metric_that_no_benchmark_has_is_refused(metric: str, hint: str) -> None:
    with pytest.raises(SettingError, match=rf"^--metric {metric}: there is no such metric; {hint}"):
        require_known(metric, ["sample_imbalance"])
    require_known("sample_imbalance", ["sample_imbalance"])


def test_a_test_without_benchmarks_is_an_error(probes: Any, complaint: Run) -> None:
    probes(lambda *_: Outcome((), {}))
    assert "pytest t.py measures no benchmark: name tests that call ddpperf.check" in complaint(
        "bisect", "t.py", "--good", "c0"
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.84, "0.84 s"), (60, "1 min"), (160, "2.7 min"), (3599, "60 min"), (5400, "1.5 h"), (1e6, "280 h")],
)
def test_an_estimated_time_has_two_digits(seconds: float, text: str) -> None:
    assert command.span(seconds) == text


def test_for_a_single_commit_the_estimated_time_is_the_time_of_the_confirmation(bisected: Any) -> None:
    out = bisected(lambda now, then: outcome(timed(0.1 * (now - then)), seconds=300.0), good="c15")
    assert "\n1 commit to search, 1 probe to confirm it, measuring for 5 min to 20 min\n" in out
