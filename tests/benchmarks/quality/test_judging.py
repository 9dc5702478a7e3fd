"""A whole made-up campaign, judged: rates of certain outcomes, and the words around them."""

from __future__ import annotations

import json

import pytest

from benchmarks.quality.conditions import FIRST, UNCHANGED
from benchmarks.quality.judging import ONE_OF_SUITE, OURS, PAIRED, STORED, Findings, effect_of, judged
from benchmarks.quality.peers import RULES
from benchmarks.quality.report import document, report
from benchmarks.quality.simulated import CELL
from tests.benchmarks.quality.synthetic import campaign

COMPARISONS = 4


@pytest.fixture(scope="module")
def findings() -> Findings:
    return judged(campaign(60), COMPARISONS, seed=0)


def test_steady_launches_give_no_false_alarm_and_every_find(findings: Findings) -> None:
    (cell,) = findings.cells
    for rule in (STORED, PAIRED):
        rates = {name: tally.alarms.value for name, tally in cell.tallies[rule].items()}
        assert rates[UNCHANGED] == rates[FIRST] == 0
        assert rates["+10%"] == 1
    assert cell.tallies[PAIRED]["+5%"].alarms.value == 1


def test_a_slower_first_launch_alarms_those_who_have_no_other(findings: Findings) -> None:
    (cell,) = findings.cells
    assert all(cell.tallies[rule][FIRST].alarms.value == 1 for rule in RULES)


def test_independent_comparisons_are_counted(findings: Findings) -> None:
    """180 unchanged launches; A/A takes 51 of them for a baseline and 7 for a run, 60 pairs last for 60 // 7."""
    (cell,) = findings.cells
    assert cell.tallies[STORED][UNCHANGED].alarms.independent == 180 // (51 + 7)
    assert cell.tallies[PAIRED][UNCHANGED].alarms.independent == 60 // 7
    assert cell.tallies["median + 5%"]["+5%"].alarms.independent == 60


def test_the_same_seed_gives_the_same_findings(findings: Findings) -> None:
    again = judged(campaign(60), COMPARISONS, seed=0)
    assert document(again) == document(findings)


def test_the_effect_is_that_of_the_round(findings: Findings) -> None:
    drifting = campaign(30, drift=lambda number: 1 + number).launches
    effect = effect_of(drifting, CELL, "+5%")
    assert effect is not None
    assert effect.typical == pytest.approx(0.05, abs=0.005)
    seldom = effect_of(drifting, CELL, "1 step in 10")
    assert seldom is not None
    assert seldom.mean == pytest.approx(0.05, abs=0.005)
    assert abs(seldom.typical) < 0.01
    assert effect_of(drifting, CELL, UNCHANGED) is None


def test_the_report_holds_goals_and_rates(findings: Findings) -> None:
    text = report(findings)
    assert f"12ms w2: {1e3 * findings.cells[0].step:.1f} ms a step, 60 rounds" in text
    assert "goal, stored baseline: +10% found, at least 99.5%: 100.0 % [" in text
    assert "goal, stored baseline: unchanged false alarms, at most 0.5%: 0.0 % [0 .. " in text
    assert "though not for certain" in text
    for rule in RULES:
        assert f"{rule}: alarms" in text


def test_the_figures_are_json(findings: Findings) -> None:
    (cell,) = json.loads(json.dumps(document(findings)))["cells"]
    assert cell["rules"][STORED]["+10%"]["alarms"]["rate"] == 1
    assert cell["rules"][STORED]["+10%"]["alarms"]["of"] == COMPARISONS
    assert cell["rules"][ONE_OF_SUITE]["+10%"]["mde"] > cell["rules"][STORED]["+10%"]["mde"]
    assert set(cell["rules"]) == {*OURS, *RULES}


def test_a_campaign_of_one_round_is_judged_as_far_as_it_goes() -> None:
    (cell,) = judged(campaign(1), 1, seed=0).cells
    assert cell.rounds == 1
