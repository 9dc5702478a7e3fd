"""Recorded launches survive the file and a cut; partners are of one round."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.quality.campaign import BrokenFile, append, of_cell, partners, read, write
from benchmarks.quality.simulate import CELL
from benchmarks.quality.steps import FIRST, UNCHANGED
from tests.benchmarks.quality.synthetic import campaign, recorded

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
    for launch, other in zip(again.launches, CAMPAIGN.launches, strict=True):
        assert (launch.cell, launch.round, launch.condition, launch.resident) == (
            other.cell,
            other.round,
            other.condition,
            other.resident,
        )
        assert launch.step_times == pytest.approx(other.step_times, abs=5e-8)
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
        for launch in CAMPAIGN.launches[:3]:
            append(launch, out)
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


def test_partners_are_of_one_round_and_never_the_same_launch() -> None:
    for condition in (UNCHANGED, "+5%", FIRST):
        pairs = partners(LAUNCHES, CELL, condition)
        assert len(pairs) == 20
        assert all(base.round == new.round and base is not new for base, new in pairs)
        assert {base.condition for base, _ in pairs} == {UNCHANGED}
    assert {new.condition for _, new in partners(LAUNCHES, CELL, "+5%")} == {"+5%"}


def test_launches_that_took_turns_are_not_among_those_that_ran_alone() -> None:
    alone = of_cell(LAUNCHES, CELL, "+5%")
    assert len(alone) == 20
    assert {launch.pair for launch in alone} == {None}


def test_a_round_that_was_cut_off_has_no_partners() -> None:
    assert partners([recorded(0, UNCHANGED, (1.0,), pair="+5%")], CELL, "+5%") == []
