"""Recorded launches survive the file, and what was written before a cut survives the cut."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.quality.launches import BrokenFile, append, header_line, read, write
from tests.benchmarks.quality.synthetic import campaign

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
    file.write_text(header_line(CAMPAIGN))
    with pytest.raises(BrokenFile, match="not a compressed file"):
        read(file)


def test_a_line_that_is_no_launch_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file.gz"
    file.write_bytes(gzip.compress(f"{header_line(CAMPAIGN)}\n{{}}\n".encode()))
    with pytest.raises(BrokenFile, match="KeyError: 'length'"):
        read(file)
