from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpperf.baselines.codec import NOISE
from pytest_ddpperf.baselines.history.database import Benchmark, Entry, HistoryRun
from pytest_ddpperf.baselines.noise import find, learned_noise, noise_file, read, save
from pytest_ddpperf.baselines.store import Store
from pytest_ddpperf.errors import BaselineError
from pytest_ddpperf.records.measurement import Environment, Spread
from pytest_ddpperf.records.results import Calibration, Noise

TEST = "perf/test_a.py::test_step[ddp]"
KEY = "cpu-amd-epyc-2c-t1-gloo-w2-torch2.13"
CALIBRATION = Calibration(
    name="ddp",
    date="2026-01-12",
    commit="3f2a1c0",
    runs=5,
    launches=8,
    steps=24,
    seconds=51.5,
    floor=0.042,
    within=Spread(sd=0.1, df=900),
    between_launches=Spread(sd=0.02, df=35),
    between_runs=Spread(sd=0.004, df=4),
    strategy="ddp",
    recipe={"precision": "bf16"},
)
Make = Callable[..., Environment]


def test_what_is_saved_is_found(tmp_path: Path, make_environment: Make) -> None:
    environment = make_environment()
    assert save(tmp_path, TEST, [(environment, CALIBRATION)]) == (tmp_path / KEY / "noise.json",)
    assert find(tmp_path, TEST, "ddp", environment) == CALIBRATION
    assert find(tmp_path, TEST, "naive", environment) is None
    assert find(tmp_path, "another", "ddp", environment) is None
    assert find(tmp_path, TEST, "ddp", make_environment(cores=4)) is None
    assert CALIBRATION.noise == Noise(between_runs=Spread(sd=0.004, df=4), floor=0.042, calibrated="2026-01-12")


def test_it_is_no_baseline(tmp_path: Path, make_environment: Make) -> None:
    save(tmp_path, TEST, [(make_environment(), CALIBRATION)])
    assert Store(tmp_path).files() == ()
    assert Store(tmp_path).find(TEST, "ddp", make_environment()).record is None


def test_others_stay_and_the_same_one_is_replaced(tmp_path: Path, make_environment: Make) -> None:
    environment = make_environment()
    naive, newer = replace(CALIBRATION, name="naive", commit=None), replace(CALIBRATION, floor=0.01)
    save(tmp_path, TEST, [(environment, CALIBRATION), (environment, naive)])
    save(tmp_path, "perf/test_a.py::test_b", [(environment, CALIBRATION)])
    save(tmp_path, TEST, [(environment, newer)])
    assert read(noise_file(tmp_path, environment)) == {
        TEST: {"ddp": newer, "naive": naive},
        "perf/test_a.py::test_b": {"ddp": CALIBRATION},
    }


def test_what_was_saved_without_its_training_is_read_as_of_none_and_kept(
    tmp_path: Path, make_environment: Make
) -> None:
    (file,) = save(tmp_path, TEST, [(make_environment(), CALIBRATION)])
    changed(file, "schema", value="pytest-ddpperf/noise/1")
    for name in ("strategy", "recipe"):
        changed(file, "tests", TEST, "ddp", name, value=None)
    old = replace(CALIBRATION, strategy="", recipe={})
    assert find(tmp_path, TEST, "ddp", make_environment()) == old
    save(tmp_path, TEST, [(make_environment(), replace(CALIBRATION, name="naive"))])
    assert find(tmp_path, TEST, "ddp", make_environment()) == old
    assert json.loads(file.read_text())["schema"] == NOISE.schema == "pytest-ddpperf/noise/2"


def test_a_calibration_is_of_its_own_training_alone() -> None:
    assert CALIBRATION.of_training("ddp", {"precision": "bf16"})
    assert not CALIBRATION.of_training("fsdp2", {"precision": "bf16"})
    assert not CALIBRATION.of_training("ddp", {})
    assert not replace(CALIBRATION, strategy="", recipe={}).of_training("ddp", {})


def test_nothing_to_save_leaves_nothing(tmp_path: Path) -> None:
    assert save(tmp_path / "baselines", TEST, []) == ()
    assert list(tmp_path.iterdir()) == []


def changed(file: Path, *path: str, value: Any) -> None:
    """One value of the file replaced, as an editor would; None to remove it."""
    document = json.loads(file.read_text())
    inner = document
    for name in path[:-1]:
        inner = inner[name]
    if value is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    file.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (("schema",), None, "field schema: is missing, so this is no noise file"),
        (
            ("schema",),
            "pytest-ddpperf/baseline/1",
            f"field schema: expected {NOISE.schema}, found pytest-ddpperf/baseline/1",
        ),
        (("environment",), "cpu-x", "field environment: the file is of cpu-x: it was moved or copied"),
        (("tests", TEST, "ddp", "floor"), -0.1, f"field tests.{TEST}.ddp.floor: expected a number of at least 0"),
        (("tests", TEST, "ddp", "runs"), 1, f"field tests.{TEST}.ddp.runs: expected a whole number of at least 2"),
        (("tests", TEST, "ddp", "date"), "soon", f"field tests.{TEST}.ddp.date: expected a day such as 2026-01-31"),
        (("tests", TEST, "ddp", "within"), {"sd": "1"}, f"field tests.{TEST}.ddp.within.df: is missing"),
        (("tests", TEST, "ddp", "strategy"), "", f"field tests.{TEST}.ddp.strategy: expected a text that is not empty"),
        (
            ("tests", TEST, "ddp", "recipe"),
            {"precision": 16},
            f"field tests.{TEST}.ddp.recipe.precision: expected a text",
        ),
        (("tests", TEST, "ddp", "surprise"), 1, f"field tests.{TEST}.ddp.surprise: is not known here"),
    ],
)
def test_what_is_broken_is_named(
    tmp_path: Path, make_environment: Make, path: tuple[str, ...], value: Any, problem: str
) -> None:
    (file,) = save(tmp_path, TEST, [(make_environment(), CALIBRATION)])
    changed(file, *path, value=value)
    with pytest.raises(BaselineError) as caught:
        find(tmp_path, TEST, "ddp", make_environment())
    message = str(caught.value)
    assert message.startswith(f"noise file {file}: {problem}")
    assert message.endswith("restore it from version control, or delete it and run ddpperf calibrate again")


def test_a_newer_file_is_not_read(tmp_path: Path, make_environment: Make) -> None:
    (file,) = save(tmp_path, TEST, [(make_environment(), CALIBRATION)])
    changed(file, "schema", value="pytest-ddpperf/noise/3")
    with pytest.raises(
        BaselineError, match=r"written by a newer pytest-ddpperf \(noise/3\); this one reads /2: upgrade"
    ):
        read(file)


def test_what_is_no_text_or_cut_off_is_named_and_left_as_it_is(tmp_path: Path, make_environment: Make) -> None:
    file = noise_file(tmp_path, make_environment())
    file.parent.mkdir()
    for content, problem in ((b"\xff", "is not text in UTF-8"), (b'{"schema": ', "is cut off at line 1")):
        file.write_bytes(content)
        with pytest.raises(BaselineError, match=problem):
            save(tmp_path, TEST, [(make_environment(), CALIBRATION)])
        assert file.read_bytes() == content
    file.unlink()
    file.mkdir()
    with pytest.raises(BaselineError, match="cannot be read"):
        read(file)


def entries(
    commit: str | None, *logs: float, dirty: bool = False, key: str = "here", recipe: str = "{}"
) -> list[Entry]:
    """Runs of a commit with these logarithms of seconds."""
    benchmark = Benchmark(
        test="t.py::test",
        name="ddp",
        strategy="ddp",
        mode=None,
        recipe=recipe,
        world_size=2,
        environment_key=key,
        metric="step_time",
        unit="s",
        better="lower",
        scale="ratio",
    )
    run = HistoryRun(date="2026-01-12T00:00:00+00:00", commit=commit, branch="main", dirty=dirty)
    return [
        Entry(benchmark=benchmark, run=run, value=math.exp(log), interval=None, min_tolerance=0.0, gated=True)
        for log in logs
    ]


def learned(*recorded: list[Entry]) -> Noise | None:
    return learned_noise(
        [entry for commit in recorded for entry in commit], environment_key="here", strategy="ddp", recipe={}
    )


def test_runs_of_one_commit_tell_how_far_the_same_code_lies_apart() -> None:
    """Squares 2 around 0 and 8 around 5, of 2 + 2 degrees of freedom: 10 / 4; the step from 0 to 5 is the code's."""
    found = learned(entries("a", -1, 0, 1), entries("b", 3, 5, 7), entries("c", 40))
    assert found is not None
    assert found.between_runs.sd == pytest.approx(math.sqrt(2.5))
    assert found.between_runs.df == 4
    assert found.floor == pytest.approx(math.expm1(2.131847 * math.sqrt(2 * 2.5)))  # t(95 %, 4 df)
    assert (found.runs, found.commits, found.calibrated) == (6, 2, "")


def test_a_few_runs_tell_nothing() -> None:
    assert learned(entries("a", 0, 1, 2, 3)) is None
    assert learned(*(entries(commit, 0) for commit in "abcdefgh")) is None


@pytest.mark.parametrize(
    "other",
    [
        entries("a", 9, dirty=True),
        entries("a", 9, key="another machine"),
        entries("a", 9, recipe='{"precision": "bf16"}'),
        entries(None, 8, 9),
    ],
)
def test_what_is_not_the_same_code_on_the_same_machine_does_not_count(other: list[Entry]) -> None:
    assert learned(entries("a", 0, 1, 2, 3), other) is None
    assert learned(entries("a", 0, 1, 2, 3, 4), other) == learned(entries("a", 0, 1, 2, 3, 4))
