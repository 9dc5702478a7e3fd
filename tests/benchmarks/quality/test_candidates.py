"""How far launches differ, on made-up ones whose scatter is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.quality.candidates import CANDIDATES, CPU_TIME, SHOWN, TYPICAL, scatters
from benchmarks.quality.launches import Cell
from tests.benchmarks.quality.synthetic import campaign


def test_the_scatter_is_that_of_launches_alone_and_of_what_two_in_turns_differ_by() -> None:
    """Launches scatter by 2 %, so two of them differ by 2.8 %; drift over the rounds widens those alone, not pairs."""
    drifting = campaign(60, launch_spread=0.02, drift=lambda number: 1 + 0.01 * number).launches
    found = scatters(drifting, drifting[0].cell)
    assert list(found) == list(CANDIDATES)
    for name in (TYPICAL, "median"):
        assert found[name].turns.sd == pytest.approx(0.02 * 2**0.5, rel=0.1)
        assert found[name].alone.sd > 0.1
        assert found[name].shown == pytest.approx(0.1, abs=0.01)


def test_the_busiest_rank_s_cpu_time_scatters_too_where_all_tell_it() -> None:
    """The ranks' CPU times: 0.02, and in every other round 0.01 and 0.022: 5 % above and below their middle."""
    launches = [replace(one, cpu=(0.02, 0.01) if one.round % 2 else (0.01, 0.022)) for one in campaign(20).launches]
    found = scatters(launches, launches[0].cell)[CPU_TIME]
    assert found.alone.sd == pytest.approx(0.05, rel=0.1)
    assert (found.turns.sd, found.shown) == (0.0, 0.0)


def test_what_was_not_gathered_is_not_shown() -> None:
    launches = [one for one in campaign(10).launches if one.condition != SHOWN]
    assert scatters(launches, launches[0].cell)[TYPICAL].shown is None
    other = scatters(launches, Cell("another", 8))[TYPICAL]
    assert (other.alone.df, other.turns.df, other.shown) == (0, 0, None)


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
    assert CANDIDATES[name](steps) == pytest.approx(expected)
