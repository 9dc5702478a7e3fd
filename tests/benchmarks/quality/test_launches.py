"""Recorded launches survive the file and a cut; stretches keep their order, and a run comes after its baseline."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.quality.launches import (
    BrokenFile,
    TooFew,
    append,
    of_cell,
    one_each,
    partners,
    read,
    separate,
    side_by_side,
    with_first,
    write,
)
from benchmarks.quality.simulate import CELL
from benchmarks.quality.steps import FIRST, UNCHANGED
from tests.benchmarks.quality.synthetic import campaign, drawing, recorded

CAMPAIGN = campaign(2)


def test_a_campaign_is_read_as_it_was_written(tmp_path: Path) -> None:
    first, *others = CAMPAIGN.launches
    write(replace(CAMPAIGN, launches=(replace(first, cpu=(0.05, None)), *others)), tmp_path / "file.gz")
    again = read(tmp_path / "file.gz")
    assert again.launches[0].cpu[0] == pytest.approx(0.05)
    assert again.launches[0].cpu[1] is None
    assert (again.began, again.environments, again.calibrations) == (
        CAMPAIGN.began,
        CAMPAIGN.environments,
        CAMPAIGN.calibrations,
    )
    for one, other in zip(again.launches, CAMPAIGN.launches, strict=True):
        assert (one.cell, one.round, one.condition, one.resident) == (
            other.cell,
            other.round,
            other.condition,
            other.resident,
        )
        assert one.step_times == pytest.approx(other.step_times, abs=5e-8)
    assert [path.name for path in tmp_path.iterdir()] == ["file.gz"]


def test_of_older_files_the_cpu_time_is_not_known(tmp_path: Path) -> None:
    file = tmp_path / "file.gz"
    write(CAMPAIGN, file)
    file.write_bytes(gzip.compress(gzip.decompress(file.read_bytes()).replace(b'"cpu":[null,null]', b'"more":1')))
    assert read(file).launches[0].cpu == (None, None)


def test_launches_are_added_and_a_cut_costs_the_last_one_at_most(tmp_path: Path) -> None:
    file = tmp_path / "file.gz"
    write(CAMPAIGN, file)
    with gzip.open(file, "at") as out:
        for one in CAMPAIGN.launches[:3]:
            append(one, out)
        whole = file.read_bytes()  # nothing closes the file: as if it ended here
    file.write_bytes(whole)
    assert len(read(file).launches) == len(CAMPAIGN.launches) + 3
    file.write_bytes(whole[:-20])
    assert len(read(file).launches) == len(CAMPAIGN.launches) + 2


@pytest.mark.parametrize("content", [b"", b"[1]\n", b'{"schema": "other/1"}\n'])
def test_another_file_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "file.gz"
    file.write_bytes(gzip.compress(content))
    with pytest.raises(BrokenFile, match=r"file\.gz: not a file of launches"):
        read(file)


def test_a_file_that_is_not_compressed_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file.gz"
    file.write_text("{}")
    with pytest.raises(BrokenFile, match=r"file\.gz: not a file of launches: BadGzipFile"):
        read(file)


def test_a_line_that_is_no_launch_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file.gz"
    write(CAMPAIGN, file)
    with gzip.open(file, "at") as out:
        out.write("{}\n")
    with pytest.raises(BrokenFile, match="KeyError: 'loss'"):
        read(file)


LAUNCHES = campaign(20).launches
SAME = of_cell(LAUNCHES, CELL, UNCHANGED)
SLOWER = of_cell(LAUNCHES, CELL, "+5%")


@pytest.mark.parametrize("new", [SAME, SLOWER])
def test_a_run_comes_after_its_baseline_and_both_are_whole_stretches(new: list[object]) -> None:
    for seed in range(50):
        sides = separate(SAME, new, 7, drawing(seed))  # type: ignore[arg-type]
        first, begin = SAME.index(sides.base[0]), new.index(sides.new[0])
        assert sides.base == tuple(SAME[first : first + 7])
        assert sides.new == tuple(new[begin : begin + 7])
        assert sides.base[-1].started < sides.new[0].started


def test_the_stretches_begin_anywhere() -> None:
    drawn = [separate(SAME, SAME, 7, drawing(seed)) for seed in range(300)]
    assert {SAME.index(sides.base[0]) for sides in drawn} == set(range(60 // 2 - 7 + 1))
    assert max(SAME.index(sides.new[-1]) for sides in drawn) == 59


def test_a_short_campaign_gives_half_of_its_launches_to_each_side() -> None:
    sides = separate(SAME[:8], SAME[:8], 50, drawing())
    assert sides.base + sides.new == tuple(SAME[:8])


def test_too_few_launches_are_no_comparison() -> None:
    draw = drawing()
    with pytest.raises(TooFew, match="1 launches leave none for a baseline"):
        separate(SAME[:1], SAME, 5, draw)
    with pytest.raises(TooFew, match="no launch comes after the baseline"):
        separate(SAME[10:20], SAME[:5], 5, draw)
    with pytest.raises(TooFew, match="no round has both sides"):
        side_by_side([], 5, draw)
    with pytest.raises(TooFew, match="no launch comes after another one"):
        one_each(SAME[5:], SAME[:5], draw)


def test_only_the_first_launch_of_a_run_is_replaced() -> None:
    slow = recorded(0, FIRST, (1.0,))
    sides = separate(SAME, SAME, 7, drawing())
    assert with_first(sides, [slow], drawing()).new == (slow, *sides.new[1:])


def test_partners_are_of_one_round_and_never_the_same_launch() -> None:
    for condition in (UNCHANGED, "+5%", FIRST):
        pairs = partners(LAUNCHES, CELL, condition)
        assert len(pairs) == 20
        assert all(base.round == new.round and base is not new for base, new in pairs)
        assert {base.condition for base, _ in pairs} == {UNCHANGED}
    assert {new.condition for _, new in partners(LAUNCHES, CELL, "+5%")} == {"+5%"}


def test_launches_that_took_turns_are_not_among_those_that_ran_alone() -> None:
    assert len(SLOWER) == 20
    assert {one.pair for one in SAME + SLOWER} == {None}


def test_a_round_that_was_cut_off_has_no_partners() -> None:
    assert partners([recorded(0, UNCHANGED, (1.0,), pair="+5%")], CELL, "+5%") == []


def test_sides_of_one_run_are_rounds_that_follow_each_other() -> None:
    pairs = partners(LAUNCHES, CELL, "+5%")
    sides = side_by_side(pairs, 6, drawing(1))
    rounds = [one.round for one in sides.new]
    assert rounds == list(range(rounds[0], rounds[0] + 6)) == [one.round for one in sides.base]


def test_one_launch_of_each_side_the_new_one_later() -> None:
    for seed in range(50):
        sides = one_each(SAME, SLOWER, drawing(seed))
        assert sides.base[0].started < sides.new[0].started
