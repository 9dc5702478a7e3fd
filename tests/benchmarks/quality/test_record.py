"""The order of launches; a campaign of a few seconds over real ranks, resumed and judged."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from benchmarks.quality.campaign import Cell, read
from benchmarks.quality.record import Wanted, require_same_machine, turns
from benchmarks.quality.simulate import CELL, ENVIRONMENT
from benchmarks.quality.steps import CONDITIONS, FIRST
from pytest_ddpperf.errors import SettingError
from tests.benchmarks.quality.synthetic import campaign

ROOT = Path(__file__).parents[3]
ALL = tuple(CONDITIONS.values())
ROUND = sum(condition.launches for condition in ALL) + len(ALL) - 1


def test_a_round_has_every_condition_alone_and_beside_an_unchanged_launch_and_the_order_changes() -> None:
    found = list(islice(turns(Wanted((CELL,), ALL, 1.0)), 2 * ROUND))
    first, second = ([(turn.condition.name, turn.paired) for turn in found[i : i + ROUND]] for i in (0, ROUND))
    alone = {(condition.name, False): condition.launches for condition in ALL}
    paired = {(condition.name, True): 1 for condition in ALL if condition.name != FIRST}
    assert Counter(first) == Counter(second) == alone | paired
    assert first != second
    assert [turn.round for turn in found] == [0] * ROUND + [1] * ROUND


def test_a_file_is_continued_with_the_next_round() -> None:
    assert next(turns(Wanted((CELL,), ALL, 1.0), campaign(3).launches)).round == 3


def test_groups_that_share_cores_get_a_turn_less_often() -> None:
    cells = (Cell("4ms", 2), Cell("4ms", 4))
    found = islice(turns(Wanted(cells, ALL[:1], 1.0)), 4 * 15)  # four launches a round, five rounds in four turns
    assert Counter(turn.cell.ranks for turn in found) == {2: 4 * 12, 4: 4 * 3}


def test_launches_of_another_machine_are_not_added(tmp_path: Path) -> None:
    old, here = campaign(1), {2: replace(ENVIRONMENT, cores=4)}
    with pytest.raises(SettingError, match=r"file\.gz is from another machine \(cores 8 -> 4\): give --data another"):
        require_same_machine(tmp_path / "file.gz", old, here)
    require_same_machine(tmp_path / "file.gz", old, {2: ENVIRONMENT, 4: replace(ENVIRONMENT, world_size=4)})


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    script = [sys.executable, "benchmarks/verdict_quality.py", *arguments]
    return subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_launches_are_gathered_added_to_and_judged(tmp_path: Path) -> None:
    file = tmp_path / "launches.jsonl.gz"
    gather = ("gather", "--data", str(file), "--lengths", "4ms", "--minutes", "0.03")
    assert command(*gather).returncode == 0
    first = read(file)
    assert first.launches
    assert command(*gather).returncode == 0
    both = read(file)
    assert both.launches[: len(first.launches)] == first.launches
    assert len(both.launches) > len(first.launches)
    assert both.calibrations == first.calibrations
    done = command("judge", "--data", str(file), "--comparisons", "2")
    assert done.returncode == 0, done.stderr
    assert "4ms w2" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("gather", "--data", "x.gz", "--lengths", "5ms"), "--lengths 5ms: there are 4ms, 12ms, 60ms, 78ms"),
        (("gather", "--data", "x.gz", "--conditions", "+4%"), "--conditions +4%: there are unchanged, +3%, +5%"),
        (("gather", "--data", "missing/x.gz"), "--data missing/x.gz: there is no folder missing"),
        (("judge", "--data", "missing.gz"), "No such file or directory: 'missing.gz'"),
    ],
)
def test_a_mistake_is_one_line(arguments: tuple[str, ...], complaint: str) -> None:
    done = command(*arguments)
    assert done.returncode == 1
    assert done.stderr.strip().endswith(complaint) or complaint in done.stderr
    assert len(done.stderr.splitlines()) == 1
