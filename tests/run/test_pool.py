"""The budget of a session, with a clock that tests set."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.judge.sequential import Look, Next
from pytest_ddpperf.launch.launch_result import LaunchResult
from pytest_ddpperf.records.batch_size import BatchSize, Search
from pytest_ddpperf.records.health import CpuHealth, Health
from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.run.dealing import Aim, Need
from pytest_ddpperf.run.part import Part, part_of
from pytest_ddpperf.run.planning import LaunchPlans
from pytest_ddpperf.run.pool import SCREENING, Pass, Pool
from pytest_ddpperf.run.recording import Recording
from pytest_ddpperf.run.rounds import End
from tests.factories import make_budget, make_new_result, make_series, make_variant


class Clock:
    """Stands still until a test moves it."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def result(value: int) -> list[LaunchResult[int]]:
    return [LaunchResult((value,), (), 1.0)]


def test_a_recording_tells_its_launches_again_in_no_time(clock: Clock) -> None:
    recording, watched = Recording(clock, kept=True), list[int]()

    def launch(value: int) -> list[LaunchResult[int]]:
        clock.now += 2.0
        return result(value)

    def watch(seen: Health | None) -> Health | None:
        watched.append(1)
        return seen

    def fails() -> list[LaunchResult[int]]:
        clock.now += 30.0
        raise WorkloadError("hangs")

    health = Health(cpu=CpuHealth())
    ended = recording.watch(lambda: lambda _: watch(health))
    assert recording.launched(lambda: launch(1)) == result(1)
    assert ended(None) == health
    with pytest.raises(WorkloadError, match="hangs"):
        recording.launched(fails)
    again = recording.again()
    assert (recording.now(), again.now()) == (32.0, 32.0)
    ended = again.watch(lambda: lambda _: watch(None))
    assert again.launched(lambda: launch(2)) == result(1)
    assert (ended(None), len(watched)) == (health, 1)
    assert (clock.now, again.now()) == (32.0, 34.0)
    with pytest.raises(WorkloadError, match="hangs"):
        again.launched(lambda: launch(2))
    assert (clock.now, again.now()) == (32.0, 64.0)
    assert again.watch(lambda: lambda _: watch(None))(None) is None
    assert again.launched(lambda: launch(2)) == result(2)
    assert (clock.now, again.now(), len(watched)) == (34.0, 66.0, 2)


def test_without_a_budget_a_call_has_its_own_max_time(clock: Clock) -> None:
    pool = Pool(None, 3, clock)
    pool.begin_test("a")
    assert part_of(pool, "a").max_time(60.0) == 60.0
    assert (pool.text(), pool.complaint) == ("", None)


def test_one_pass_gives_equal_shares_and_what_one_leaves_flows_on(clock: Clock) -> None:
    pool, given = Pool(60.0, 3, clock), []
    for test, spent in (("a", 5.0), ("b", 30.0), ("c", 25.0)):
        pool.begin_test(test)
        part = part_of(pool, test)
        clock.now += 2.0  # preparing
        given.append(part.max_time(1000.0))
        clock.now += spent - 2.0
    assert given == [18.0, 25.5, 23.0]  # of 60 s a third, of 55 s a half, of 25 s all: less 2 s
    assert 0 < part_of(pool, "c").max_time(1000.0) < 0.01  # there is none left
    assert part_of(Pool(60.0, 2, clock), "a").max_time(7.0) == 7.0  # which somebody has set


def test_a_test_of_the_same_function_tells_how_many_calls_share(clock: Clock) -> None:
    """Of 60 s the first call has half, and its test's second one, that knows of one test more, half of 40 s.

    Of the 20 s that are left, the last test's two calls have 10 s each.
    """
    pool, given = Pool(60.0, 2, clock), []
    for test, seconds in (("a[1]", (20.0, 20.0)), ("a[2]", (10.0, 10.0))):
        pool.begin_test(test)
        for spent in seconds:
            given.append(part_of(pool, test).max_time(1000.0))
            clock.now += spent
    assert given == [30.0, 20.0, 10.0, 10.0]


def test_a_test_that_runs_once_has_its_share_of_the_last_pass(clock: Clock) -> None:
    """Of 36 s after the screening the suspect has at most 24: each of three tests has a third until its turn."""
    pool = Pool(48.0, 3, clock)
    pool.leave_out(["once", "twice"])
    pool.begin_pass(Pass.SCREEN)
    pool.begin_test("a")
    part = part_of(pool, "a")
    part.recording([make_variant("ddp")]).elapsed = 12.0
    part.kept.need = Need(aim=Aim.CONFIRM, least=4.0, wanted=60.0)
    clock.now += 12.0
    pool.begin_pass(Pass.LAST)
    pool.begin_test("once")
    assert part_of(pool, "once").max_time(1000.0) == 12.0
    pool.begin_test("a")
    assert pool.dealt(("a", 1)) == 18.0  # of 36 s for two tests
    pool.begin_test("twice")
    assert pool.dealt(("a", 1)) == 36.0


def test_repeated_calls_share_the_time_of_one(clock: Clock) -> None:
    pool = Pool(60.0, 2, clock, turns=5)
    pool.begin_test("a")
    assert part_of(pool, "a").max_time(1000.0) == 6.0


def test_a_screening_takes_its_part_of_the_budget_and_the_rest_is_dealt(clock: Clock) -> None:
    """Of 36 s each of two tests screens 18 s; a suspect then has what the other one does not want."""
    pool = Pool(36.0 / SCREENING, 2, clock)
    variants = [make_variant("ddp")]
    pool.begin_pass(Pass.SCREEN)
    for test, need in (
        ("a", Need(aim=Aim.PROVE, least=1.0, wanted=8.0)),
        ("b", Need(aim=Aim.CONFIRM, least=4.0, wanted=16.0)),
    ):
        pool.begin_test(test)
        part = part_of(pool, test)
        clock.now += 3.0
        assert part.max_time(1000.0) == pytest.approx(15.0 / SCREENING)
        recording = part.recording(variants)
        budget = part.limited(make_budget(None, 5, 6, 100.0, 50.0), recording, 15.0 / SCREENING)
        assert (budget.screening, recording.deadline) == (15.0, 15.0)
        clock.now += 15.0
        recording.elapsed, recording.first, part.kept.need = 15.0, 5, need
        pool.end_test(test)
    pool.begin_pass(Pass.LAST)
    pool.begin_test("a")
    part = part_of(pool, "a")
    assert part.before is not None
    assert part.max_time(1000.0) == 15.0 + 1.0  # what is left holds 1 and 16 s, and is then too little for a proof
    recording = part.recording(variants)
    budget = part.limited(make_budget(None, 5, 6, 100.0, 50.0), recording, 16.0)
    assert (budget.max_time, budget.screening, budget.first) == (16.0, 15.0, 5)  # all launches are told again
    clock.now += 1.0
    pool.end_test("a")
    pool.begin_test("b")
    assert part_of(pool, "b").max_time(1000.0) == 15.0 + 16.0
    assert part_of(pool, "b").before is None  # a second call, which the first run did not come to


def test_all_sides_that_were_prepared_have_as_much(clock: Clock) -> None:
    """Preparing takes 20 of 100 s; each of eight sides has an eighth of the screening's part of 80 s."""
    pool = Pool(100.0, 3, clock)
    pool.begin_pass(Pass.PREPARE)
    for number, (test, sides) in enumerate([("a", 2), ("b", 4), ("c", 2)], start=1):
        pool.begin_test(test)
        part = part_of(pool, test)
        assert part.preparing_only
        part.preparing(test.encode).launched(lambda: result(1))
        part.max_time(1000.0, sides)
        assert pool.text().startswith(f"preparing {number} of 3, ")
    clock.now = 20.0
    pool.begin_pass(Pass.SCREEN)
    for test, sides in (("a", 2), ("b", 4), ("c", 2)):
        pool.begin_test(test)
        part = part_of(pool, test)
        assert not part.preparing_only
        assert part.max_time(1000.0, sides) == pytest.approx(10.0 * sides)
        clock.now += 10.0 * sides * SCREENING
    pool.begin_pass(Pass.LAST)
    pool.begin_test("b")
    kept = part_of(pool, "b").preparing(lambda: b"b")
    assert kept.launched(lambda: result(2)) == result(1), "the screening knew it, and kept it"


def test_one_pass_has_equal_shares_for_tests_whatever_they_compare(clock: Clock) -> None:
    pool = Pool(60.0, 3, clock)
    pool.begin_test("a")
    assert part_of(pool, "a").max_time(1000.0, 16) == 20.0


def test_what_the_session_starts_counts_for_no_test(clock: Clock) -> None:
    """Of 60 s it takes 12 s; each of two tests then screens its half of 48 s, as far as a screening goes."""

    def start() -> None:
        clock.now += 12.0

    pool = Pool(60.0, 2, clock)
    pool.start(start)
    pool.begin_pass(Pass.SCREEN)
    pool.begin_test("a")
    assert part_of(pool, "a").max_time(1000.0) == pytest.approx(24.0)


def screened(pool: Pool, clock: Clock, need: Need, *tests: str, setup: float = 1.0) -> None:
    """Screens tests whose fixtures take ``setup`` seconds, and whose launches take 4 s; none has any time left."""
    for test in tests:
        with pool.screened(test):
            pool.begin_test(test)
            clock.now += setup
            part = part_of(pool, test)
            with part.launching():
                clock.now += 4.0
            part.kept.need = need
            part.recording([make_variant(test)]).first = 3
            part.kept.recordings[-1][1].elapsed = 4.0


def test_second_runs_are_reserved_what_they_take_besides_launches(clock: Clock) -> None:
    """Of 60 s the screening takes 10 s, fixtures take 1 s again, and the launch of the other one takes 2 s."""
    pool = Pool(60.0, 2, clock)
    pool.begin_pass(Pass.SCREEN)
    screened(pool, clock, Need(aim=Aim.CONFIRM, least=2.0), "a")
    screened(pool, clock, Need(aim=Aim.PROVE, least=2.0), "b")
    pool.begin_pass(Pass.LAST)
    clock.now += 1.0
    pool.begin_test("a")
    assert part_of(pool, "a").max_time(1000.0) == 4.0 + (60.0 - 10.0 - 1.0) - 1.0 - 2.0


def test_the_first_pass_leaves_what_the_second_takes_at_least(clock: Clock) -> None:
    """Two tests of four need 7 s each again: four need 28 s, and half of 40 s are fewer."""
    pool = Pool(40.0, 4, clock)
    pool.begin_pass(Pass.SCREEN)
    screened(pool, clock, Need(aim=Aim.SEE, least=6.0), "a", "b")
    pool.begin_test("c")
    assert part_of(pool, "c").max_time(1000.0) == (40.0 - 10.0 - 28.0) / 2 / SCREENING


def test_one_suspect_is_taken_for_one_in_a_few_tests(clock: Clock) -> None:
    """One of two tests needs 6 s to be confirmed: with four more that need nothing, one in six, so the two to come 2 s.

    All four take 1 s each besides, so the last pass needs 12 s.
    """
    pool = Pool(30.0, 4, clock)
    pool.begin_pass(Pass.SCREEN)
    screened(pool, clock, Need(aim=Aim.CONFIRM, least=6.0), "a")
    screened(pool, clock, Need(aim=Aim.PROVE), "b")
    pool.begin_test("c")
    assert part_of(pool, "c").max_time(1000.0) == (30.0 - 10.0 - 12.0) / 2 / SCREENING


def test_a_call_that_has_had_its_share_needs_no_more(clock: Clock) -> None:
    pool = Pool(60.0, 2, clock)
    pool.begin_pass(Pass.SCREEN)
    pool.begin_test("a")
    for _ in range(2):
        part = part_of(pool, "a")
        part.recording([make_variant("ddp")])
        part.kept.need = Need(aim=Aim.CONFIRM, wanted=40.0)
    pool.begin_pass(Pass.LAST)
    pool.begin_test("a")
    assert [part_of(pool, "a").max_time(1000.0) for _ in range(2)] == [40.0, 40.0]


PLANS = LaunchPlans(plans=(), groups=(), findings=(), seconds=(1.0,), diagnosis_seconds=2.0, unhurried=(1.0, 2.0))


BLIND = Need(aim=Aim.SEE, wanted=60.0)


def in_its_second_run(clock: Clock, other: Need, own: Need = BLIND) -> Part:
    """The part of a benchmark in a budget of 200 s, which it shares with another one that needs so much."""
    pool = Pool(200.0, 2, clock)
    pool.begin_pass(Pass.SCREEN)
    screened(pool, clock, own, "a")
    screened(pool, clock, other, "b")
    pool.begin_pass(Pass.LAST)
    pool.begin_test("a")
    part = part_of(pool, "a")
    part.max_time(1000.0)
    return part


def timed(verdict: Verdict, enough: int | None = 9) -> Result:
    """A result that ``enough`` launches would decide."""
    series = make_series("step_time", 1.0)
    comparison = Comparison(series=series, tolerance=0.03, verdict=verdict, gated=True, enough=enough)
    return replace(make_new_result(), comparisons=(comparison,))


@pytest.mark.parametrize(
    ("verdict", "other", "yields"),
    [
        (Verdict.INCONCLUSIVE, Need(aim=Aim.SEE, wanted=400.0), False),  # it is blind itself
        (Verdict.OK, Need(aim=Aim.SEE, wanted=400.0), True),
        (Verdict.OK, Need(aim=Aim.CONFIRM, wanted=50.0), False),  # there is enough for both
        (Verdict.OK, Need(aim=Aim.PROVE, wanted=400.0), False),  # one proof is as good as another
    ],
)
def test_what_rules_a_slowdown_out_yields_to_those_that_cannot_see_yet(
    clock: Clock, verdict: Verdict, other: Need, *, yields: bool
) -> None:
    """Of a budget of 200 s, 20 are spent when this benchmark has had 4 launches of 1 s in its second run."""
    part = in_its_second_run(clock, other)
    recording = Recording(clock)
    recording.planned(lambda: PLANS)
    clock.now = 20.0
    result = timed(verdict)
    look = Look(elapsed=4.0, round_seconds=1.0, last=False)
    for action in (Next("more", 1), Next("stop")):
        heard = replace(action, action="stop", briefly=True) if yields else action
        assert part.looked(recording, [result], look, 4, action) == heard
    if yields:
        asked = Next("stop", explain=True)
        assert part.looked(recording, [result], look, 4, asked) == asked, "what got worse is diagnosed in full"


@pytest.mark.parametrize(
    ("wanted", "explains", "later", "actions"),
    [
        pytest.param(50.0, 0.0, (0.1, 40.0), ["more", "more"], id="a proof that was dealt goes on, however exactly"),
        pytest.param(
            50.0, 9.0, (0.1, 40.0, 49.5), ["more", "more", "stop"], id="it ends when its diagnosis has to begin"
        ),
        pytest.param(500.0, 9.0, (0.1,), ["stop"], id="a proof that does not fit leaves its time to its diagnosis"),
        pytest.param(0.0, 9.0, (0.1,), ["stop"], id="no number of launches would prove it"),
    ],
)
def test_a_proof_and_its_diagnosis_have_the_time_that_was_dealt(
    clock: Clock, wanted: float, explains: float, later: tuple[float, ...], actions: list[str]
) -> None:
    own = Need(aim=Aim.PROVE, wanted=wanted, explains=explains)
    part = in_its_second_run(clock, Need(aim=Aim.DIAGNOSE, wanted=10.0), own)
    recording = Recording(clock)
    recording.planned(lambda: PLANS)
    look, begun = Look(elapsed=4.0, round_seconds=1.0, last=False), clock.now
    heard = []
    for after in later:
        clock.now = begun + after
        heard.append(part.looked(recording, [timed(Verdict.OK)], look, 4, Next("more", 1)).action)
    assert heard == actions


def in_its_confirmation(pool: Pool, clock: Clock, *suspects: str) -> tuple[Part, Recording]:
    """The part of the last one of the ``suspects`` in a confirmation, whose launches until then are told again."""
    pool.begin_pass(Pass.CONFIRM)
    for test in suspects:
        pool.begin_test(test)
        part = part_of(pool, test)
        part.max_time(1000.0)
        recording = part.recording([make_variant(test)])
    recording.planned(lambda: PLANS)
    return part, recording


def worse(verdict: Verdict, *, suspicious: bool) -> Result:
    result = timed(verdict)
    return replace(result, comparisons=(replace(result.comparisons[0], suspicious=suspicious, enough=40),))


def test_a_suspect_that_is_cleared_leaves_its_time_to_benchmarks_before_it(clock: Clock) -> None:
    """Of 60 s the screening takes 10 s. Of the rest the suspect may have 40 s; cleared after 5 s, it wants nothing."""
    pool = Pool(60.0, 2, clock)
    pool.begin_pass(Pass.SCREEN)
    screened(pool, clock, Need(aim=Aim.SEE, wanted=40.0), "blind", setup=0.0)
    screened(pool, clock, Need(aim=Aim.CONFIRM, least=2.0, wanted=40.0, decides=4.0), "suspect", setup=0.0)
    assert [pool.is_suspect(test) for test in ("blind", "suspect", "unknown")] == [False, True, False]
    assert pool.lacks
    part, recording = in_its_confirmation(pool, clock, "suspect")
    assert (part.ends_at, part.max_time(1000.0)) == (End.JUDGED, 4.0 + 40.0)
    assert pool.text() == "confirming, 0:52 left of 1:00"
    look = Look(elapsed=4.0, round_seconds=1.0, last=False)
    for action in (Next("confirm", 4), Next("more", 1)):
        assert part.looked(recording, [worse(Verdict.INCONCLUSIVE, suspicious=True)], look, 4, action) == action
    clock.now += 5.0
    look = replace(look, elapsed=9.0)
    heard = part.looked(recording, [timed(Verdict.UNCHANGED)], look, 8, Next("more", 1))
    assert heard.action == "stop", "what else it needs is dealt out in the last pass"
    assert not pool.is_suspect("suspect")
    pool.begin_pass(Pass.LAST)
    pool.begin_test("blind")
    assert part_of(pool, "blind").max_time(1000.0) == 4.0 + 40.0
    pool.end_test("blind")
    pool.begin_test("suspect")
    part = part_of(pool, "suspect")
    assert part.max_time(1000.0) == pytest.approx(9.0 + 1.1 * 2.0), "its launches until then, and a diagnosis"
    assert part.recording([make_variant("suspect")]).plans is PLANS


def test_a_look_that_was_suspicious_is_so_again_with_more_time(clock: Clock) -> None:
    """Beside a stored baseline a last look suspects at an easier level."""
    pool = Pool(60.0, 2, clock)
    pool.begin_pass(Pass.SCREEN)
    pool.begin_test("a")
    part = part_of(pool, "a")
    part.max_time(1000.0)
    recording = part.recording([make_variant("ddp")])
    recording.planned(lambda: PLANS)
    look = Look(elapsed=15.0, round_seconds=1.0, last=False, screened=True)
    part.looked(recording, [worse(Verdict.INCONCLUSIVE, suspicious=True)], look, 4, Next("confirm", 4))
    again = recording.again(kept=True).again()
    now = Look(elapsed=15.0, round_seconds=1.0, last=False)
    assert [again.as_looked(now, launches).screened for launches in (3, 4, 5)] == [False, True, False]


def test_a_suspect_that_fails_leaves_its_time(clock: Clock) -> None:
    """And what a test takes besides launches is reserved for its last run while it confirms."""
    pool = Pool(60.0, 2, clock)
    pool.begin_pass(Pass.SCREEN)
    screened(pool, clock, Need(aim=Aim.SEE, wanted=60.0), "blind", setup=0.0)
    screened(pool, clock, Need(aim=Aim.CONFIRM, wanted=60.0), "suspect", setup=3.0)
    pool.begin_pass(Pass.CONFIRM)
    pool.begin_test("suspect")
    part = part_of(pool, "suspect")
    assert part.max_time(1000.0) == 4.0 + 60.0 - 11.0 - 3.0
    part.recording([make_variant("suspect")])
    part.kept.need = None
    pool.begin_pass(Pass.LAST)
    pool.begin_test("blind")
    assert part_of(pool, "blind").max_time(1000.0) == 4.0 + 60.0 - 11.0 - 3.0


@pytest.mark.parametrize("explain", [True, False])
def test_a_suspect_that_is_shown_to_be_worse_is_left_a_diagnosis(clock: Clock, *, explain: bool) -> None:
    """One whose time was up wants more: what nobody else needs."""
    pool = Pool(60.0, 2, clock)
    pool.begin_pass(Pass.SCREEN)
    screened(pool, clock, Need(aim=Aim.SEE, least=3.0, wanted=3.0), "blind", setup=0.0)
    screened(pool, clock, Need(aim=Aim.CONFIRM, wanted=40.0), "suspect", setup=0.0)
    part, recording = in_its_confirmation(pool, clock, "suspect")
    result = worse(Verdict.REGRESSED if explain else Verdict.INCONCLUSIVE, suspicious=True)
    asked = Next("stop", explain=explain)
    assert part.looked(recording, [result], Look(elapsed=9.0, round_seconds=1.0, last=True), 9, asked) == asked
    pool.begin_pass(Pass.LAST)
    pool.begin_test("suspect")
    more = 2.0 if explain else 4 * 4.0 - 5.0  # four times the screening at most, of which 5 s are spent
    assert part_of(pool, "suspect").max_time(1000.0) == 9.0 + more


def test_a_call_beside_that_of_a_suspect_is_told_its_launches_again_and_keeps_its_need(clock: Clock) -> None:
    pool = Pool(60.0, 1, clock)
    pool.begin_pass(Pass.SCREEN)
    pool.begin_test("a")
    for need in (Need(aim=Aim.PROVE, wanted=7.0), Need(aim=Aim.CONFIRM, wanted=30.0)):
        part = part_of(pool, "a")
        recording = part.recording([make_variant("ddp")])
        recording.planned(lambda: PLANS)
        recording.launched(list)
        recording.elapsed, part.kept.need = 4.0, need
    pool.begin_pass(Pass.CONFIRM)
    pool.begin_test("a")
    part = part_of(pool, "a")
    recording = part.recording([make_variant("ddp")])
    recording.launched(list)
    more, look = Next("more", 1), Look(elapsed=4.0, round_seconds=1.0, last=False)
    assert part.looked(recording, [timed(Verdict.OK)], look, 4, more).action == "stop"
    pool.begin_pass(Pass.LAST)
    pool.begin_test("a")
    assert part_of(pool, "a").max_time(1000.0) == 4.0 + 7.0


def test_a_search_for_a_batch_size_is_listed_in_the_last_pass_alone(clock: Clock) -> None:
    found = Search(
        test="a",
        training="ddp",
        environment=make_variant("ddp").environment,
        limit=8,
        memory_limit=None,
        found=BatchSize(size=4, peak=None, tried=()),
    )
    pool, listed = Pool(60.0, 1, clock), list[Search]()
    for each in (Pass.SCREEN, Pass.CONFIRM, Pass.LAST):
        pool.begin_pass(each)
        pool.begin_test("a")
        part = part_of(pool, "a")
        known = part.before.search if part.before is not None else None
        assert known == (None if each is Pass.SCREEN else found)
        part.searched(found, listed)
        assert listed == ([found] if each is Pass.LAST else [])


def test_launches_that_are_told_again_cost_nothing_and_yield_to_nobody(clock: Clock) -> None:
    part = in_its_second_run(clock, Need(aim=Aim.SEE, wanted=400.0))
    kept = Recording(clock, kept=True)
    kept.planned(lambda: PLANS)
    kept.launched(list)
    result = timed(Verdict.OK)
    recording, look = kept.again(), Look(elapsed=4.0, round_seconds=1.0, last=False)
    assert part.looked(recording, [result], look, 4, Next("more", 1)).action == "more"
    recording.launched(list)
    assert part.looked(recording, [result], look, 5, Next("more", 1)).action == "stop"


def test_a_benchmark_that_is_measured_anew_has_no_more_than_it_was_dealt(clock: Clock) -> None:
    pool = Pool(60.0, 2, clock)
    pool.begin_pass(Pass.SCREEN)
    screened(pool, clock, Need(aim=Aim.SEE, least=1.0, wanted=8.0), "a", setup=0.0)
    pool.begin_pass(Pass.LAST)
    pool.begin_test("a")
    part = part_of(pool, "a")
    max_time = part.max_time(1000.0)
    assert max_time == 4.0 + 8.0
    clock.now += 3.0  # launchers start
    budget = part.limited(make_budget(None, 5, 6, 12.0, 6.0), part.recording([make_variant("other")]), max_time)
    assert (budget.max_time, budget.screening) == (5.0, 2.5)


def test_a_failure_of_a_preparing_launch_is_raised_again_at_its_turn(clock: Clock) -> None:
    pool, launches = Pool(60.0, 2, clock), list[int]()

    def fails() -> list[LaunchResult[int]]:
        launches.append(1)
        raise WorkloadError("hangs")

    for each in (Pass.SCREEN, Pass.LAST):
        pool.begin_pass(each)
        pool.begin_test("a")
        part = part_of(pool, "a")
        with pytest.raises(WorkloadError, match="hangs"):
            part.preparing(lambda: b"same").launched(fails)
    assert len(launches) == 1
    with pytest.raises(WorkloadError, match="hangs"):
        part.preparing(lambda: b"other").launched(fails)
    assert len(launches) == 2


def test_other_benchmarks_begin_anew(clock: Clock) -> None:
    pool = Pool(60.0, 2, clock)
    pool.begin_pass(Pass.SCREEN)
    pool.begin_test("a")
    part_of(pool, "a").recording([make_variant("ddp")]).first = 3
    pool.begin_pass(Pass.LAST)
    pool.begin_test("a")
    part = part_of(pool, "a")
    assert part.recording([make_variant("naive")]).first is None
    pool.begin_test("a")
    assert part_of(pool, "a").recording([make_variant("ddp")]).first == 3


def test_launches_of_another_workload_by_the_same_name_are_not_told_again(clock: Clock) -> None:
    pool = Pool(60.0, 1, clock)
    pool.begin_pass(Pass.SCREEN)
    pool.begin_test("a")
    part = part_of(pool, "a")
    part.preparing(lambda: b"a workload").launched(lambda: result(1))
    part.recording([make_variant("ddp")]).first = 3
    pool.begin_pass(Pass.LAST)
    for workload, first in ((b"a workload", 3), (b"another", None)):
        pool.begin_test("a")
        part = part_of(pool, "a")
        part.preparing(partial(bytes, workload)).launched(lambda: result(1))
        assert part.recording([make_variant("ddp")]).first == first


@pytest.mark.parametrize("screening", [True, False])
def test_a_test_that_is_skipped_leaves_its_share(clock: Clock, *, screening: bool) -> None:
    """Of four, the first is skipped, and the second measures for 10 s: two have what is left."""
    pool = Pool(90.0 * (2 if screening else 1), 4, clock)
    pool.begin_pass(Pass.SCREEN if screening else Pass.LAST)
    pool.ended("a")
    pool.begin_test("b")
    part = part_of(pool, "b")
    share = part.max_time(1000.0)
    clock.now += 10.0
    pool.ended("b")
    pool.begin_test("c")
    assert (share, part_of(pool, "c").max_time(1000.0)) == (
        (60.0, (90.0 - 5.0 / SCREENING)) if screening else (30.0, 40.0)
    )


def test_a_budget_that_is_too_small_names_one_that_would_do(clock: Clock) -> None:
    """Of 20 s a test has 10 s, and takes 25 s until the first look: 15 s more than it had, of the screening's part."""
    pool = Pool(20.0, 2, clock)
    pool.begin_test("a")
    part = part_of(pool, "a")
    part.max_time(1000.0)
    recording = Recording(clock)
    recording.planned(lambda: PLANS)
    clock.now = 25.0
    would_do = math.ceil(25.0 + 15.0 / SCREENING)
    assert pool.complaint is None
    for elapsed in (25.0, 40.0):  # what comes after a first look is asked for
        part.looked(recording, [], Look(elapsed=elapsed, round_seconds=2.0, last=True), 2, Next("stop"))
        assert pool.complaint == (
            f"--ddpperf-budget=20s had no time for the launches of a first look in 1 call; {would_do}s would do"
        )


def test_where_a_session_stands(clock: Clock) -> None:
    pool = Pool(600.0, 26, clock)
    pool.begin_pass(Pass.SCREEN)
    for test in "abcdefg":
        pool.begin_test(test)
    clock.now = 350.0
    assert pool.text() == "screening 7 of 26, 4:10 left of 10:00"
    pool.begin_pass(Pass.LAST)
    assert pool.text() == "4:10 left of 10:00"
    clock.now = 700.0
    assert pool.text() == "0:00 left of 10:00"


@pytest.mark.parametrize(
    ("ceiling", "took", "lacks"), [(60.0, 33.0, True), (60.0, 32.0, False), (31.0, 33.0, True), (30.0, 33.0, False)]
)
def test_a_limit_of_its_own_is_no_lack_of_the_budget(clock: Clock, ceiling: float, took: float, *, lacks: bool) -> None:
    """Each of two tests has 30 s of the budget, and a round of 2 s more is no lack either."""
    pool = Pool(60.0, 2, clock)
    pool.begin_test("a")
    part = part_of(pool, "a")
    part.max_time(ceiling)
    recording = Recording(clock)
    recording.planned(lambda: PLANS)
    clock.now = took
    part.looked(recording, [], Look(elapsed=took, round_seconds=2.0, last=True), 2, Next("stop"))
    assert (pool.complaint is not None) == lacks
