"""A whole made-up campaign, judged: certain outcomes and their goals; other tools' rules where they are plain."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from benchmarks.quality import rates
from benchmarks.quality.campaign import Cell, Sides
from benchmarks.quality.rates import COLUMNS, OURS, RULES, Tallies, Tally, goal_lines, judged, rule_rows
from benchmarks.quality.simulate import CELL
from benchmarks.quality.steps import CONDITIONS, FIRST, UNCHANGED
from benchmarks.quality.verdicts import Outcome, Verdict
from benchmarks.verdict_quality import CPU_TIME, SHOWN, STATISTICS, cell_text, effect_of, scatters
from pytest_ddpperf.stats.rates import Rate
from tests.benchmarks.quality.synthetic import campaign

COMPARISONS = 1
CAMPAIGN = campaign(60)


@pytest.fixture(scope="module")
def tallies() -> Tallies:
    return judged(CAMPAIGN, CELL, COMPARISONS, seed=0)


def test_steady_launches_give_no_false_alarm_and_every_find(tallies: Tallies) -> None:
    rates = {name: tally.alarms.value for name, tally in tallies[OURS].items()}
    assert rates[UNCHANGED] == rates[FIRST] == 0
    assert rates["+5%"] == rates["+10%"] == 1


def test_a_slower_first_launch_alarms_those_who_have_no_other(tallies: Tallies) -> None:
    assert all(tallies[rule][FIRST].alarms.value == 1 for rule in RULES)


def test_independent_comparisons_are_counted(tallies: Tallies) -> None:
    """A/A takes a pilot and six launches; 60 pairs last for 60 // 7 such runs."""
    assert tallies[OURS][UNCHANGED].alarms.independent == 60 // 7
    assert tallies["median + 5%"]["+5%"].alarms.independent == 60


def seconds_of_seed(seed: int) -> list[float | None]:
    return [tally.seconds for tallies in judged(CAMPAIGN, CELL, 1, seed).values() for tally in tallies.values()]


def test_the_same_seed_draws_the_same_comparisons_and_another_seed_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is judged: a verdict takes as many seconds as its launches began after the first one."""

    def dated(sides: Sides) -> Outcome:
        began = sum(launch.started for launch in (*sides.base, *sides.new))
        return Outcome(Verdict.UNCHANGED, seconds=began, launches=7, mde=None, change=None)

    monkeypatch.setattr(rates, "of_recorded", lambda sides, *_: dated(sides))
    first, again, other = map(seconds_of_seed, (0, 0, 1))
    assert first == again
    ours = [(one, another) for one, another in zip(first, other, strict=True) if one is not None]
    assert len(ours) == len(CONDITIONS)
    assert all(one != another for one, another in ours)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_findings(tallies: Tallies) -> None:
    assert judged(CAMPAIGN, CELL, COMPARISONS, seed=0) == tallies


def test_the_effect_is_that_of_the_round() -> None:
    drifting = campaign(30, drift=lambda number: 1 + number).launches
    effect = effect_of(drifting, CELL, "+5%")
    assert effect is not None
    assert effect.mean == pytest.approx(0.05, abs=0.005)
    seldom = effect_of(drifting, CELL, "1 step in 10")
    assert seldom is not None
    assert seldom.mean == pytest.approx(0.05, abs=0.005)
    assert abs(seldom.median) < 0.01
    assert effect_of(drifting, CELL, UNCHANGED) is None


def test_the_report_holds_goals_and_rates(tallies: Tallies) -> None:
    text = cell_text(CAMPAIGN, CELL, tallies)
    assert re.search(r"^12ms w2: \d+\.\d ms a step, 60 rounds$", text, re.MULTILINE)
    assert "goal, side by side: +10% found, at least 99.5%: 100.0 % [" in text
    assert "goal, side by side: unchanged false alarms, at most 0.5%: 0.0 % [0 .. " in text
    assert "though not for certain" in text
    for rule in RULES:
        assert f"{rule}: alarms" in text


def test_a_campaign_of_one_round_is_judged_as_far_as_it_goes() -> None:
    short = campaign(1)
    text = cell_text(short, CELL, judged(short, CELL, 1, seed=0))
    assert re.search(r"^12ms w2: \d+\.\d ms a step, 1 rounds$", text, re.MULTILINE)


def test_the_scatter_is_that_of_launches_alone_and_of_what_two_in_turns_differ_by() -> None:
    """Launches scatter by 2 %, so two of them differ by 2.8 %; drift over the rounds widens those alone, not pairs."""
    drifting = campaign(60, launch_spread=0.02, drift=lambda number: 1 + 0.01 * number).launches
    found = scatters(drifting, drifting[0].cell)
    assert list(found) == list(STATISTICS)
    for name in ("mean", "median"):
        assert found[name].paired == pytest.approx(0.02 * 2**0.5, rel=0.1)
        assert found[name].alone > 0.1
        assert found[name].shown == pytest.approx(0.1, abs=0.01)


def test_the_busiest_rank_s_cpu_time_scatters_too_where_all_tell_it() -> None:
    """The ranks' CPU times: 0.02, and in every other round 0.01 and 0.022: 5 % above and below their middle."""
    launches = [
        replace(launch, cpu=(0.02, 0.01) if launch.round % 2 else (0.01, 0.022)) for launch in campaign(20).launches
    ]
    found = scatters(launches, launches[0].cell)[CPU_TIME]
    assert found.alone == pytest.approx(0.05, rel=0.1)
    assert (found.paired, found.shown) == (0.0, 0.0)


def test_what_was_not_gathered_is_not_shown() -> None:
    launches = [launch for launch in campaign(10).launches if launch.condition != SHOWN]
    assert scatters(launches, launches[0].cell)["mean"].shown is None
    other = scatters(launches, Cell("another", 8))["mean"]
    assert (other.alone, other.paired, other.shown) == (0, 0, None)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("minimum", 1.0),
        ("lower tenth", 1.4),
        ("mean of the faster half", 1.5),
        ("mean of the faster 90%", 2.5),
        ("harmonic mean", 5 / (1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5)),
    ],
)
def test_what_launches_could_be_reduced_to(name: str, expected: float) -> None:
    """Of five steps, half are two (round half to even), and 90 % are four and a half: four."""
    steps = [5.0, 3.0, 1.0, 4.0, 2.0]
    assert STATISTICS[name](steps) == pytest.approx(expected)


BASE = [1.00, 1.01, 1.02, 1.03, 1.04, 1.05, 1.06, 1.07, 1.08, 1.09, 1.10, 1.11]
MEAN, MINIMUM, MEDIAN, T_TEST, RANKS, ASV = RULES


def alarms(new: list[float]) -> set[str]:
    return {name for name, rule in RULES.items() if rule(new, BASE)}


def test_the_same_steps_alarm_nobody() -> None:
    assert not alarms(BASE)


def test_faster_steps_alarm_nobody() -> None:
    assert not alarms([0.5 * step for step in BASE])


def test_twice_the_time_alarms_all() -> None:
    assert alarms([2 * step for step in BASE]) == set(RULES)


def test_a_single_pause_moves_the_mean_alone() -> None:
    """11 of 12 steps stay: the mean rises by 1.11 / 12.66 = 8.8 %, minimum and median do not."""
    assert alarms([*BASE[:-1], 2.22]) == {MEAN}


@pytest.mark.parametrize(
    ("factor", "expected"), [(1.049, {T_TEST, RANKS}), (1.051, {MEAN, MINIMUM, MEDIAN, T_TEST, RANKS})]
)
def test_five_percent_is_the_limit_of_three(factor: float, expected: set[str]) -> None:
    assert alarms([factor * step for step in BASE]) == expected


def test_the_ranks_alone_do_not_alarm_asv() -> None:
    """No step overlaps, so p is far below 0.002; the median has to be 1.1 times the old one as well."""
    steady = [1.0 + 1e-4 * i for i in range(12)]
    assert not RULES[ASV]([1.09 * step for step in steady], steady)
    assert RULES[ASV]([1.11 * step for step in steady], steady)


def tally(found: int, of: int) -> Tally:
    return Tally(Rate(found, of, of))


def test_only_goals_of_which_the_tallies_tell_have_a_line() -> None:
    assert goal_lines({}) == []
    assert goal_lines({OURS: {"+5%": tally(50, 100), UNCHANGED: tally(0, 1000)}}) == [
        "goal, side by side: unchanged false alarms, at most 0.5%: 0.0 % [0.0 .. 0.4], reached",
        "goal, side by side: +5% found, at least 95.0%: 50.0 % [40 .. 60], missed by 45.0 points",
    ]


def test_rows_that_say_nothing_are_left_out() -> None:
    """What is never improved has no such row; a condition without a tally has a dash."""
    tallies = {UNCHANGED: Tally(Rate(0, 4, 4), improved=Rate(0, 4, 4))}
    labels = ("alarms", "improved", "seconds")
    assert set(labels) <= set(COLUMNS)
    assert rule_rows(OURS, tallies, (UNCHANGED, "+3%"), labels) == [("side by side: alarms", "0.0 % [0 .. 60]", "-")]
    rest = {UNCHANGED: Tally(Rate(1, 8, 8), inconclusive=Rate(2, 8, 8), improved=Rate(1, 8, 8))}
    assert rule_rows(OURS, rest, (UNCHANGED,), ("unchanged",)) == [("side by side: unchanged", "50.0 % [16 .. 84]")]
    faster = {UNCHANGED: Tally(Rate(0, 4, 4), improved=Rate(4, 4, 4))}
    assert rule_rows(OURS, faster, (UNCHANGED,), labels)[1] == ("side by side: improved", "100.0 % [40 .. 100]")
