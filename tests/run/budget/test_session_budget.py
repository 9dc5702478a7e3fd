"""The time of a session with a fake clock: every figure follows from the seconds that are spent."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from pytest_ddpperf.errors import NotTimed
from pytest_ddpperf.judge.sequential import Interim
from pytest_ddpperf.records.results import Result
from pytest_ddpperf.run.budget import session_budget
from pytest_ddpperf.run.budget.allocation import Priority, TimeRequest
from pytest_ddpperf.run.budget.session_budget import CallId, SessionBudget
from pytest_ddpperf.settings import Settings

LOOK = Interim(elapsed=6.0, round_seconds=1.5, last=False, shared=True)


class Clock:
    """Seconds that only ``spend`` moves on."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds

    def spend(self, seconds: float) -> None:
        """Moves on."""
        self.seconds += seconds


def started(seconds: float | None, tests: int, *, two_passes: bool = False) -> tuple[SessionBudget, Clock]:
    clock = Clock()
    budget = SessionBudget(seconds, tests, clock)
    budget.two_passes = two_passes
    budget.start()
    return budget, clock


def share_of(
    budget: SessionBudget, test: str, max_time: float = math.inf, *, compared: bool = False, benchmarks: int = 1
) -> float:
    """The seconds that the first call of a test gets when it begins to measure at once."""
    budget.begin_test(test)
    call, _ = budget.next_call(test)
    budget.share(call, Settings(max_time=max_time), begun=budget.now(), compared=compared, benchmarks=benchmarks)
    return budget.call_left


def test_without_a_limit_a_call_has_its_own_time_and_half_of_it_finds_suspects() -> None:
    budget, clock = started(None, 5)
    assert share_of(budget, "a", 20.0, compared=True) == 20.0
    assert budget.screening == 10.0
    assert share_of(budget, "b", 20.0) == budget.screening == 20.0
    clock.spend(15.0)
    assert budget.elapsed == 15.0
    assert budget.goes_on(5.0)
    assert not budget.goes_on(5.1)


def test_time_before_the_first_timed_launch_counts_for_its_call() -> None:
    budget, clock = started(None, 1)
    budget.begin_test("a")
    call, _ = budget.next_call("a")
    begun = clock()
    clock.spend(4.0)
    assert not budget.share(call, Settings(max_time=20.0), begun=begun, compared=True, benchmarks=1)
    assert (budget.before, budget.call_left, budget.screening) == (4.0, 16.0, 8.0)


@pytest.mark.parametrize(("two_passes", "shares"), [(False, [25.0, 30.0]), (True, [12.5, 15.0])])
def test_tests_have_equal_shares_and_unused_time_goes_to_the_others(*, two_passes: bool, shares: list[float]) -> None:
    """Of 100 s the first of two passes has 50: a fourth of it is 12.5, and a third of what 5 s leave is 15."""
    budget, clock = started(100.0, 4, two_passes=two_passes)
    first = share_of(budget, "a")
    clock.spend(5.0 if two_passes else 10.0)
    assert [first, share_of(budget, "b")] == pytest.approx(shares)


def test_a_call_that_measures_several_benchmarks_has_as_many_shares() -> None:
    """Three of the six benchmarks that are known have 50 s; of what they leave, each of three tests has a third."""
    budget, clock = started(100.0, 4)
    assert share_of(budget, "a", benchmarks=3) == pytest.approx(50.0)
    clock.spend(40.0)
    assert share_of(budget, "b") == pytest.approx(60 / 3)


@pytest.mark.parametrize(
    ("benchmarks", "two_passes", "share"),
    [(1, False, (94 - 18) / 4), (3, False, (94 - 6) / 2), (3, True, (94 - 6) / 4)],
)
def test_time_that_other_tests_need_for_counting_is_reserved(
    benchmarks: int, *, two_passes: bool, share: float
) -> None:
    """The first of four tests counts for 6 s.

    The others are expected to take 18 of the 94 s that are left, or 6 if the first one has three benchmarks. These have
    half of the rest then, and in two passes half of that half.
    """
    budget, clock = started(100.0, 4, two_passes=two_passes)
    budget.begin_test("a")
    begun = clock()
    clock.spend(6.0)
    budget.note_preparation(begun, benchmarks)
    call, _ = budget.next_call("a")
    budget.share(call, Settings(max_time=math.inf), begun=begun, compared=False, benchmarks=benchmarks)
    assert budget.call_left == pytest.approx(share)


def test_nothing_is_timed_if_counting_needs_all_of_the_remaining_time() -> None:
    """One of four tests counts for 10 s: three more need 30 s, of which 31 and then 29 s are left."""
    budget, clock = started(41.0, 4, two_passes=True)
    budget.begin_test("a")
    begun = clock()
    clock.spend(10.0)
    budget.note_preparation(begun, 1)
    assert not budget.is_over
    clock.spend(2.0)
    assert budget.is_over
    budget.second_pass()
    assert not budget.is_over, "a suspect is confirmed, whatever that takes"
    alone, clock = started(20.0, 1)
    clock.spend(30.0)
    assert not alone.is_over, "there is one pass"


def test_a_test_that_was_only_counted_runs_again_if_time_is_left() -> None:
    budget, clock = started(60.0, 2, two_passes=True)
    budget.begin_test("a")
    call, _ = budget.next_call("a")
    budget.leave_untimed(call)
    assert budget.holds("a")
    clock.spend(50.0)
    assert budget.second_pass() == ["a"]
    clock.spend(10.0)
    assert budget.second_pass() == []


def test_a_test_that_was_skipped_leaves_its_share_to_the_others() -> None:
    budget, _ = started(100.0, 4)
    budget.ended("skipped")
    assert share_of(budget, "a") == pytest.approx(100 / 3)


def test_an_attempt_that_failed_counts_for_the_next_attempt_alone() -> None:
    """Of four tests the first one failed after 20 s: the other three and its next attempt have 80 s."""
    budget, clock = started(100.0, 4)
    share_of(budget, "a")
    clock.spend(20.0)
    budget.begin_anew("a")
    assert share_of(budget, "a") == pytest.approx(80 / 4)
    assert budget.text() == "1 of 4, 1:20 left of 1:40"


def test_the_setting_of_a_call_is_its_limit_if_that_is_shorter() -> None:
    budget, clock = started(100.0, 2)
    budget.begin_test("a")
    call, _ = budget.next_call("a")
    assert not budget.share(call, Settings(max_time=8.0), begun=clock(), compared=False, benchmarks=1)
    assert budget.call_left == 8.0
    assert budget.share(call, Settings(max_time=80.0), begun=clock(), compared=False, benchmarks=1), (
        "the session is what limits it"
    )
    assert budget.call_left == 50.0


@pytest.mark.parametrize(("runs_once", "screening", "over"), [(False, 12.5, 0.5), (True, 6.25, 1.0)])
def test_the_second_pass_confirms_suspects_except_in_tests_that_run_once(
    screening: float, over: float, *, runs_once: bool
) -> None:
    """So the first pass keeps nothing for a confirmation, and a part of the error for the second pass."""
    budget, _ = started(100.0, 4, two_passes=True)
    budget.runs_once = runs_once
    assert share_of(budget, "a", compared=True) == pytest.approx(12.5)
    assert budget.defers is not runs_once
    assert budget.screening == pytest.approx(screening)
    assert budget.over(last=True) == over


def test_interim_analyses_of_the_first_pass_leave_a_part_of_the_error_to_the_second() -> None:
    budget, clock = started(100.0, 1, two_passes=True)
    share_of(budget, "a")
    clock.spend(25.0)
    assert budget.over(last=False) == pytest.approx(0.25), "half of the 50 s are over"
    assert budget.over(last=True) == pytest.approx(0.5)
    budget.again = True
    call = CallId("a", 1)
    budget.share(call, Settings(max_time=1.0), begun=clock(), compared=False, benchmarks=1)
    clock.spend(budget.call_left / 2)
    assert budget.over(last=False) == pytest.approx(0.75)
    assert budget.over(last=True) == 1.0


def ask(budget: SessionBudget, monkeypatch: pytest.MonkeyPatch, requests: dict[str, TimeRequest | None]) -> None:
    """Runs each test once; its only call asks for what is given."""
    for test, request in requests.items():
        share_of(budget, test)

        def given(
            _results: Sequence[Result], _look: Interim, request: TimeRequest | None = request
        ) -> TimeRequest | None:
            return request

        monkeypatch.setattr(session_budget, "request_of", given)
        budget.ask(CallId(test, 1), [], LOOK)


def test_open_tests_run_once_more_the_most_urgent_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100 s, 40 are spent: 30 go to the suspect, 20 to what could not see, and the proof of 11 s does not fit."""
    budget, clock = started(100.0, 4, two_passes=True)
    requests: dict[str, TimeRequest | None] = {
        "proof": TimeRequest(priority=Priority.PROVE, wanted=11.0),
        "blind": TimeRequest(priority=Priority.SEE, wanted=20.0),
        "decided": None,
        "suspect": TimeRequest(priority=Priority.CONFIRM, least=6.0, wanted=30.0),
    }
    ask(budget, monkeypatch, requests)
    assert [test for test in requests if budget.holds(test)] == ["proof", "blind", "suspect"]
    clock.spend(40.0)
    assert budget.second_pass() == ["suspect", "blind"]
    assert not budget.holds("proof"), "nothing is held back any more"
    assert share_of(budget, "suspect") == pytest.approx(30.0)
    assert share_of(budget, "blind") == pytest.approx(20.0)


def test_a_green_call_leaves_its_time_to_inconclusive_ones_and_is_measured_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 50 s for two tests, a green one ends after 10 of its 25 s: the other has 40."""
    budget, clock = started(100.0, 2, two_passes=True)
    proof, blind = TimeRequest(priority=Priority.PROVE, wanted=20.0), TimeRequest(priority=Priority.SEE, wanted=9.0)
    assert share_of(budget, "green") == pytest.approx(25.0)
    clock.spend(10.0)
    monkeypatch.setattr(session_budget, "request_of", lambda *_: proof)
    budget.ask(CallId("green", 1), [], LOOK)
    assert (budget.call_left, budget.goes_on(0.1)) == (0.0, False)
    assert share_of(budget, "blind") == pytest.approx(40.0)
    monkeypatch.setattr(session_budget, "request_of", lambda *_: blind)
    budget.ask(CallId("blind", 1), [], LOOK)
    assert budget.call_left == pytest.approx(40.0), "it goes on"
    assert budget.second_pass() == ["blind", "green"]
    share_of(budget, "blind")
    monkeypatch.setattr(session_budget, "request_of", lambda *_: proof)
    budget.ask(CallId("blind", 1), [], LOOK)
    assert budget.call_left == 0.0, "it is green now"
    share_of(budget, "green")
    budget.ask(CallId("green", 1), [], LOOK)
    assert budget.call_left == pytest.approx(20.0), "a proof has the time that it asked for"


def test_a_test_skipped_in_the_second_pass_leaves_its_share_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    budget, clock = started(100.0, 2, two_passes=True)
    proof = TimeRequest(priority=Priority.PROVE, wanted=50.0)
    ask(budget, monkeypatch, {"skipped": TimeRequest(priority=Priority.CONFIRM, wanted=30.0), "proof": proof})
    clock.spend(40.0)
    assert budget.second_pass() == ["skipped"], "30 s of 60 s are left, and the half of a proof is none"
    budget.ended("skipped")
    assert budget.second_pass() == ["proof"]


def test_time_that_a_suspect_leaves_goes_to_a_green_test_that_had_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 60 s the suspect may have 55, and takes 10: a proof of 40 s, with 5 for its diagnosis, then fits into 50."""
    budget, clock = started(100.0, 2, two_passes=True)
    requests: dict[str, TimeRequest | None] = {
        "proof": TimeRequest(priority=Priority.PROVE, wanted=40.0, explains=5.0),
        "suspect": TimeRequest(priority=Priority.CONFIRM, wanted=55.0),
    }
    ask(budget, monkeypatch, requests)
    clock.spend(40.0)
    assert budget.second_pass() == ["suspect"]
    share_of(budget, "suspect")
    clock.spend(10.0)
    assert budget.second_pass() == ["proof"]
    assert share_of(budget, "proof") == pytest.approx(40.0)
    assert budget.goes_on(35.0)
    assert not budget.goes_on(35.1), "the rest is for the diagnosis"
    assert budget.call_left == pytest.approx(40.0)
    assert budget.second_pass() == []


def test_measurements_of_a_call_are_kept_for_its_second_run(monkeypatch: pytest.MonkeyPatch) -> None:
    budget, _ = started(100.0, 1, two_passes=True)
    budget.begin_test("a")
    call, progress = budget.next_call("a")
    progress.kept["search"] = 64
    monkeypatch.setattr(session_budget, "request_of", lambda *_: TimeRequest(priority=Priority.SEE, wanted=9.0))
    budget.ask(call, [], LOOK)
    budget.second_pass()
    budget.begin_test("a")
    assert budget.next_call("a")[1].kept == {"search": 64}
    assert budget.next_call("a")[1].kept == {}, "of the second call"
    budget.forget("a")
    budget.begin_test("a")
    assert budget.next_call("a")[1].kept == {}


def test_a_budget_that_was_too_small_names_one_that_would_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test has 5 s of the first pass; two rounds take 8, of which 1.5 s are a round that nobody could foresee."""
    budget, clock = started(20.0, 2, two_passes=True)
    share_of(budget, "a")
    clock.spend(5 + 1.5 + 1.5)
    monkeypatch.setattr(session_budget, "request_of", lambda *_: None)
    budget.ask(CallId("a", 1), [], LOOK)
    budget.ask(CallId("a", 1), [], LOOK)
    assert budget.complaint == "--ddpperf-budget=20s left 1 ddpperf call too few launches for a verdict; 23s would do"


def test_calls_after_the_end_of_the_budget_are_neither_counted_nor_timed() -> None:
    """Two calls are too late, and counting took 4 s for the one before: at least 21 + 2 x 4 s would do."""
    budget, clock = started(20.0, 3, two_passes=True)
    budget.begin_test("a")
    budget.next_call("a")
    begun = clock()
    clock.spend(4.0)
    budget.note_preparation(begun, 1)
    clock.spend(17.0)
    for test in ("b", "c"):
        budget.begin_test(test)
        with pytest.raises(NotTimed, match=r"--ddpperf-budget=20s left this call no time"):
            budget.next_call(test)
    assert budget.complaint == (
        "--ddpperf-budget=20s left 2 ddpperf calls no time to count or to time steps; at least 29s would do"
    )
    budget.second_pass()
    budget.next_call("b")  # a suspect is confirmed, whatever that takes


def test_a_confirmation_that_takes_longer_than_its_time_is_no_complaint(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first look was in time; a suspect has as many launches as it had, whatever these take."""
    budget, clock = started(20.0, 2, two_passes=True)
    confirmed = TimeRequest(priority=Priority.CONFIRM, least=6.0, wanted=6.0)
    ask(budget, monkeypatch, {"a": confirmed})
    clock.spend(19.0)
    assert budget.second_pass() == ["a"]
    assert share_of(budget, "a") == pytest.approx(6.0), "5 s more than there are"
    clock.spend(60.0)
    budget.ask(CallId("a", 1), [], LOOK)
    assert budget.complaint is None


def test_the_line_shows_the_progress_of_the_session() -> None:
    budget, clock = started(600.0, 26, two_passes=True)
    share_of(budget, "a")
    clock.spend(350.0)
    assert budget.text() == "1 of 26, 4:10 left of 10:00"
    budget.second_pass()
    assert budget.text() == "again, 4:10 left of 10:00"
    assert not SessionBudget(None, 3).text()
