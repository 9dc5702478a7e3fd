"""A campaign of faults: what is drawn, and when a report counts as right. No fault is run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from benchmarks.campaign.cases import DECLARED, drawn
from benchmarks.campaign.hostile import FORMS, put
from benchmarks.campaign.kinds import KINDS, Case
from benchmarks.campaign.sessions import damage
from benchmarks.campaign.verdicts import Verdict, judged

CASE = Case(
    number=1, seed=2, kind="raises", phase="result", ending=None, rank=1, world_size=3, timeout=6.0, way="suite"
)
REPORT = {
    "error": "RankFailed",
    "rank": 1,
    "text": "rank 1 of 3 raised ValueError: boom 7\n\nranks 0, 2: stopped",
    "length": 60,
    "ended": 1.5,
}


def verdict(
    case: Case = CASE, *, left: tuple[str, ...] = (), said: str = "", acted: bool = True, **report: Any
) -> Verdict:
    return judged(case, {**REPORT, **report}, [*left], said, 1.0 if acted else None)


def failed(found: Verdict) -> set[str]:
    return {name for name, holds in found.properties.items() if holds is False}


@pytest.mark.parametrize("session", [False, True])
def test_seed_and_number_determine_a_case(session: bool) -> None:  # noqa: FBT001
    assert DECLARED
    names = {name for name, kind in KINDS.items() if kind.session is session}
    cases = [drawn(3, number, session=session) for number in range(len(names))]
    assert {case.kind for case in cases} == names
    assert cases == [drawn(3, number, session=session) for number in range(len(names))]
    assert all(case.rank < case.world_size and case.phase in KINDS[case.kind].phases for case in cases)


@pytest.mark.parametrize(
    ("phase", "seconds"),
    [
        ("warm-up", 12.0),  # timed and counted in one launch
        ("verification", 18.0),  # and verified
        ("result", 6.0),
        ("any moment", 0.0),
    ],
)
def test_a_launch_that_does_several_things_has_the_time_of_each(phase: str, seconds: float) -> None:
    case = replace(CASE, phase=phase)
    assert case.deadline == seconds
    assert verdict(case, ended=seconds + 5.9).properties["in time"]
    assert not verdict(case, ended=seconds + 6.1).properties["in time"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["made.json", "trace.json.gz", "train.py"])
def test_a_hostile_file_differs_from_the_original_and_is_determined_by_seed_and_number(
    tmp_path: Path, form: str, name: str
) -> None:
    good, made = b'["a", 1.5, {"c": null, "d": ["e", true]}' + b", 2.5" * 500 + b"]", list[Path]()
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        put(folder / name, good)
        before = (folder / name).read_bytes()
        FORMS[form](folder / name, Random("1 2 content"))  # noqa: S311 - no secret
        made.append(folder / name)
        assert not made[-1].is_file() or made[-1].stat().st_size > 1 << 20 or made[-1].read_bytes() != before
    if made[0].is_file() and made[0].stat().st_size < 1 << 20:
        assert made[0].read_bytes() == made[1].read_bytes()


def test_a_baseline_that_is_not_as_it_was_stored_is_damage(tmp_path: Path) -> None:
    stored, now = tmp_path / "stored" / "test.json", tmp_path / "project" / "baselines" / "test.json"
    for file in (stored, now):
        file.parent.mkdir(parents=True)
        file.write_text("{}")
    assert damage(tmp_path / "project", stored.parent) == "no damage"
    now.write_text("[]")
    assert damage(tmp_path / "project", stored.parent) == f"damaged: {now} is not as it was stored"


def test_a_right_report_passes_all_checks() -> None:
    assert verdict().good


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        (verdict(ended=12.5), {"in time"}),
        (verdict(rank=0, text="rank 0 of 3 raised ValueError: boom 7"), {"guilty rank first"}),
        (verdict(rank=None), {"guilty rank first"}),
        (verdict(text="rank 1 of 3 raised KeyError: 8"), {"right reason"}),
        (verdict(left=("process 7",)), {"nothing left"}),
        (verdict(said="LaunchError"), {"next test passes"}),
        (verdict(error="", rank=None, text=""), {"guilty rank first", "right reason"}),
        (verdict(acted=False), {"guilty rank first", "right reason"}),
    ],
)
def test_each_error_of_a_report_fails_its_check(found: Verdict, wrong: set[str]) -> None:
    assert failed(found) == wrong


def test_two_ranks_that_contradict_each_other_need_no_guilty_one() -> None:
    two = replace(CASE, kind="sums_alone", world_size=2)
    hangs: dict[str, Any] = {
        "error": "RanksTimedOut",
        "text": "rank 0 of 2 blocked after 6 s in all_reduce (a); rank 1 in barrier (b)",
    }
    assert verdict(two, rank=None, **hangs).properties["guilty rank first"] is None
    assert failed(verdict(replace(two, world_size=3), rank=None, **hangs)) == {"guilty rank first"}
    innocent = hangs["text"] + "\n\nrank 1 in the import of the function to run for 6 s\n\nrank 0:\n  stack"
    assert failed(verdict(two, rank=0, error="RanksTimedOut", text=innocent)) == {"guilty rank first"}
