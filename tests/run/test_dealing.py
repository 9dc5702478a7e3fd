"""What is left of a session's budget goes to suspects, then to the blind, then to proofs, then to diagnoses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pytest_ddpperf.judge.sequential import Look
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import Launch
from pytest_ddpperf.records.measurement import MetricRules
from pytest_ddpperf.records.results import Comparison, PairedRevision, Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.run.dealing import TIMES, Aim, Need, dealt, need_of
from tests.factories import make_new_result, make_rank_launch, make_series

LOOK = Look(elapsed=6.0, round_seconds=1.5, last=False)


EXPLAINED = 1.1 * 5.0  # s: a diagnosis of 5 s, with room


def need(
    aim: Aim, least: float = 0.0, wanted: float = math.inf, decides: float = math.inf, explains: float = 0.0
) -> Need:
    return Need(aim=aim, least=least, wanted=wanted, decides=decides, explains=explains)


@pytest.mark.parametrize(
    ("pool", "needs", "shares"),
    [
        pytest.param(30, [need(Aim.SEE), need(Aim.CONFIRM)], [0, 30], id="a suspect comes first"),
        pytest.param(30, [need(Aim.CONFIRM), need(Aim.CONFIRM, 0, 4)], [26, 4], id="none has more than it wants"),
        pytest.param(
            30,
            [need(Aim.CONFIRM, 0, 20, 90), need(Aim.CONFIRM, 0, 20, 50), need(Aim.SEE, 0, 9)],
            [10, 20, 0],
            id="the clearest suspect",
        ),
        pytest.param(30, [need(Aim.CONFIRM, 0, 20), need(Aim.SEE)], [20, 10], id="what one leaves goes to the next"),
        pytest.param(
            30, [need(Aim.PROVE, 0, 18), need(Aim.PROVE, 0, 8), need(Aim.PROVE, 0, 9)], [0, 8, 9], id="nearest proofs"
        ),
        pytest.param(9, [need(Aim.DIAGNOSE, 0, 5), need(Aim.PROVE, 0, 7)], [0, 7], id="half a diagnosis is of no use"),
        pytest.param(9, [need(Aim.DIAGNOSE, 2, 5), need(Aim.CONFIRM, 3, 50)], [2, 7], id="all have their least"),
        pytest.param(-4, [need(Aim.SEE, 2, 5), need(Aim.CONFIRM, 3, 5)], [2, 3], id="even if nothing is left"),
        pytest.param(100, [need(Aim.PROVE, 1, 4), need(Aim.SEE, 1, 5)], [4, 5], id="nobody wants the rest"),
        pytest.param(
            13,
            [need(Aim.PROVE, 0, 20, explains=3), need(Aim.PROVE, 0, 30, explains=4), need(Aim.DIAGNOSE, 0, 8)],
            [3, 0, 8],
            id="what is not proven is diagnosed last, the shortest first",
        ),
        pytest.param(
            30,
            [need(Aim.PROVE, 0, 20, explains=3), need(Aim.PROVE, 0, 4, explains=2)],
            [23, 6],
            id="a proof is diagnosed",
        ),
        pytest.param(10, [], [], id="nothing to deal to"),
    ],
)
def test_the_pool_goes_to_the_most_urgent(pool: float, needs: list[Need], shares: list[float]) -> None:
    assert dealt(pool, needs) == pytest.approx(shares)


def test_no_more_is_dealt_than_there_is() -> None:
    needs = [need(aim, least, least * times) for aim in Aim for least in (0.5, 2.0) for times in (1, 3, 50)]
    least = sum(each.least for each in needs)
    for pool in (least, least + 0.5, least + 7, least + 90, least + 4000):
        assert sum(dealt(pool, needs)) <= pool + 1e-9


def compared(
    verdict: Verdict, *, launches: int | None = None, suspicious: bool = False, alarm_only: bool = False
) -> Comparison:
    return Comparison(
        series=make_series("step_time", 1.0, rules=MetricRules(alarm_only=alarm_only)),
        tolerance=0.03,
        verdict=verdict,
        gated=True,
        enough=launches,
        suspicious=suspicious,
        paired=True,
    )


def stored_alone(change: float) -> Comparison:
    """A step time that differs so much from the stored one, and is not shown to be slower by half."""
    note = Finding("not_gross", {"gross": 0.5})
    return replace(compared(Verdict.INCONCLUSIVE), baseline=1.0, change=change, note=note, paired=False)


@pytest.mark.parametrize(
    ("comparisons", "expected"),
    [
        ([compared(Verdict.UNCHANGED)], need(Aim.DIAGNOSE, 0.0, EXPLAINED)),
        ([], need(Aim.DIAGNOSE, 0.0, EXPLAINED)),
        ([compared(Verdict.OK, launches=9)], need(Aim.PROVE, 0.0, 5.5 * 1.5, explains=EXPLAINED)),
        ([compared(Verdict.OK)], need(Aim.PROVE, 0.0, 0.0, explains=EXPLAINED)),  # no number of launches proves it
        ([compared(Verdict.INCONCLUSIVE, launches=6)], need(Aim.SEE, 0.0, 2 * 2 * 1.5)),
        ([compared(Verdict.INCONCLUSIVE)], need(Aim.SEE, 0.0, TIMES * 6.0)),
        ([stored_alone(0.4)], need(Aim.DIAGNOSE, 0.0, EXPLAINED)),  # launches change nothing
        ([stored_alone(0.4), compared(Verdict.OK)], need(Aim.PROVE, 0.0, 0.0, explains=EXPLAINED)),
        ([stored_alone(0.6)], need(Aim.SEE, 0.0, TIMES * 6.0)),  # it may be gross
        ([compared(Verdict.OK), compared(Verdict.INCONCLUSIVE)], need(Aim.SEE, 0.0, TIMES * 6.0)),
        (  # what could see waits for its proof
            [compared(Verdict.OK, launches=90), compared(Verdict.INCONCLUSIVE, launches=6)],
            need(Aim.SEE, 0.0, 2 * 2 * 1.5),
        ),
        ([compared(Verdict.INCONCLUSIVE, suspicious=True)], need(Aim.CONFIRM, 6.0, TIMES * 6.0)),
        ([compared(Verdict.UNCHANGED), compared(Verdict.REGRESSED)], need(Aim.CONFIRM, 6.0, TIMES * 6.0)),
        (  # 2.5 times 4 launches less the 4 that there are, and the diagnosis; the other one takes longer
            [
                compared(Verdict.INCONCLUSIVE, suspicious=True, launches=4),
                compared(Verdict.OK, suspicious=True, launches=90),
            ],
            need(Aim.CONFIRM, 6.0, 9.0 + EXPLAINED, 9.0),
        ),
        (  # no time for so many
            [compared(Verdict.INCONCLUSIVE, suspicious=True, launches=90)],
            need(Aim.CONFIRM, 6.0, TIMES * 6.0, 2.5 * 135.0 - 6.0),
        ),
        (  # a mere alarm keeps nothing from green
            [compared(Verdict.UNCHANGED), compared(Verdict.INCONCLUSIVE, alarm_only=True)],
            need(Aim.DIAGNOSE, 0.0, EXPLAINED),
        ),
    ],
)
def test_what_a_benchmark_needs_follows_from_its_screening(comparisons: list[Comparison], expected: Need) -> None:
    """It has made 4 launches of 1.5 s, beside another revision."""
    beside = PairedRevision(revision="main", commit=None, record=None, launches=4)
    result = replace(make_new_result(), comparisons=tuple(comparisons), reference=beside)
    assert need_of([result], LOOK, made=4, diagnosis=5.0) == expected


def test_the_screening_confirms_nothing_beside_a_stored_baseline() -> None:
    """So 2.5 times 4 launches of 1.5 s are all to be made."""
    result = replace(make_new_result(), comparisons=(compared(Verdict.INCONCLUSIVE, suspicious=True, launches=4),))
    assert need_of([result], LOOK, made=4, diagnosis=5.0).decides == 15.0


def of_several(*comparisons: Comparison, waiting: int = 0) -> list[Result]:
    """Benchmarks of one call beside another revision; the first ``waiting`` were launched twice, the others 4 times."""
    beside = PairedRevision(revision="main", commit=None, record=None, launches=4)
    results = []
    for number, comparison in enumerate(comparisons):
        rounds = range(2 if number < waiting else 4)
        made = tuple(Launch(round=each, ranks=(make_rank_launch(),), seconds=1.0) for each in rounds)
        result = make_new_result()
        measurement = replace(result.measurement, name=f"{number}", launches=made)
        results.append(replace(result, measurement=measurement, comparisons=(comparison,), reference=beside))
    return results


def look_at(results: Sequence[Result]) -> Look:
    """The first one takes a second, the next two, and so on; the last one was launched alone."""
    of_each = {result.measurement.key: 1.0 + number for number, result in enumerate(results)}
    return replace(LOOK, round_seconds=float(len(results)), of_each=of_each)


def test_of_several_benchmarks_only_those_are_launched_on_that_need_it() -> None:
    """The second of four takes 2 s: as a suspect, and where it is to be proven; the fourth one 4 s, and both 6 s."""
    clear, suspect = compared(Verdict.UNCHANGED), compared(Verdict.INCONCLUSIVE, suspicious=True, launches=4)
    results = of_several(clear, suspect, clear, clear)
    least, fresh = 4 * 2.0, (2.5 * 4 - 4) * 2.0
    assert need_of(results, look_at(results), made=4, diagnosis=5.0) == need(
        Aim.CONFIRM, least, fresh + EXPLAINED, fresh
    )
    open_one = compared(Verdict.OK, launches=9)
    results = of_several(clear, open_one, clear, clear)
    assert need_of(results, look_at(results), made=4, diagnosis=5.0).wanted == 5.5 * 2.0
    blind = compared(Verdict.INCONCLUSIVE, launches=5)
    results = of_several(clear, open_one, blind, open_one)
    assert need_of(results, look_at(results), made=4, diagnosis=5.0) == need(Aim.SEE, 0.0, 2 * 1 * 3.0)
    results = of_several(clear, open_one, clear, open_one)
    assert need_of(results, look_at(results), made=4, diagnosis=5.0).wanted == 5.5 * 6.0


def test_all_are_launched_on_beside_a_stored_baseline() -> None:
    results = of_several(compared(Verdict.UNCHANGED), compared(Verdict.OK, launches=9))
    results = [replace(result, reference=make_new_result().reference) for result in results]
    assert need_of(results, look_at(results), made=4, diagnosis=5.0).wanted == 5.5 * 3.0


def test_launches_that_a_benchmark_lacks_are_counted_from_its_own() -> None:
    """It was launched twice, and waited while the other one was launched twice more; a launch of it takes 1 s."""
    results = of_several(compared(Verdict.OK, launches=9), compared(Verdict.UNCHANGED), waiting=1)
    assert need_of(results, look_at(results), made=4, diagnosis=5.0).wanted == 7.5 * 1.0
