from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpperf.baselines.codec import NOISE
from pytest_ddpperf.baselines.history.database import Benchmark, Entry, HistoryRun
from pytest_ddpperf.baselines.noise import known_noise, noise_file, read, recorded_noise, save, training_of
from pytest_ddpperf.baselines.store import Store
from pytest_ddpperf.errors import BaselineError
from pytest_ddpperf.records.measurement import Control, Environment, Spread
from pytest_ddpperf.records.noise import Calibration, Noise, RunSpread
from pytest_ddpperf.records.results import BaselineRecord, StoredRun
from pytest_ddpperf.stats.spreads import wider
from tests.baselines.conftest import RECORD
from tests.factories import make_series

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
    assert read(noise_file(tmp_path, environment)) == {TEST: {"ddp": CALIBRATION}}
    assert read(noise_file(tmp_path, make_environment(cores=4))) == {}


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
    assert read(noise_file(tmp_path, make_environment()))[TEST]["ddp"] == old
    save(tmp_path, TEST, [(make_environment(), replace(CALIBRATION, name="naive"))])
    assert read(noise_file(tmp_path, make_environment()))[TEST]["ddp"] == old
    assert json.loads(file.read_text())["schema"] == NOISE.schema == "pytest-ddpperf/noise/2"


def test_a_calibration_is_of_its_own_training_alone() -> None:
    trained = training_of(TEST, CALIBRATION)
    for other in (
        replace(CALIBRATION, strategy="naive"),
        replace(CALIBRATION, recipe={}),
        replace(CALIBRATION, name="b"),
    ):
        assert training_of(TEST, other) != trained
    assert training_of("another", CALIBRATION) != trained
    assert trained == (TEST, "ddp", "ddp", '{"precision":"bf16"}')


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
        read(noise_file(tmp_path, make_environment()))
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
    found = recorded_noise([entry for commit in recorded for entry in commit], "here")
    return found.get(("t.py::test", "ddp", "ddp", "{}"))


def test_runs_of_one_commit_tell_how_far_the_same_code_lies_apart() -> None:
    """Squares 2 around 0 and 8 around 5, of 2 + 2 degrees of freedom: 10 / 4; the step from 0 to 5 is the code's."""
    found = learned(entries("a", -1, 0, 1), entries("b", 3, 5, 7), entries("c", 40))
    assert found is not None
    assert found.between_runs.beyond.sd == pytest.approx(math.sqrt(2.5))
    assert found.between_runs.beyond.df == 4


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


def test_runs_of_several_days_tell_what_lasts() -> None:
    """Days with the means 0 and 2 have a variance of 2, with one degree of freedom."""
    today, later = entries("a", -1, 0, 1), entries("a", 1, 3)
    later = [replace(entry, run=replace(entry.run, date="2026-01-13T09:00:00+00:00")) for entry in later]
    found, of_one_day = learned(today, later), learned(entries("a", -1, 0, 1, 1, 3))
    assert found is not None
    assert of_one_day is not None
    assert of_one_day.over_days is None
    assert found.over_days is not None
    assert found.over_days.centers.sd == pytest.approx(math.sqrt(2))
    assert found.over_days.centers.df == 1
    assert found.between_runs == of_one_day.between_runs


DDP, NAIVE, NEITHER = (training_of(TEST, replace(CALIBRATION, name=name)) for name in ("ddp", "naive", "fsdp2"))


def calibrated(sd: float, runs: int = 5) -> Calibration:
    """Runs whose centers deviate by so much, to a half of the variance as their launches explain it."""
    t = {2: 6.313752, 5: 2.131847}[runs]
    between = Spread(sd=sd / math.sqrt(2), df=runs - 1)
    return replace(CALIBRATION, floor=math.expm1(t * math.sqrt(2) * sd), runs=runs, between_runs=between)


def test_one_calibration_tells_of_its_benchmark_alone() -> None:
    """A half of the variance is the launches'; a half of a variance with 4 degrees has 4 / 2^2 of its own."""
    known = {DDP: calibrated(0.02)}
    found = known_noise(DDP, known, {}, {})
    assert found is not None
    assert found.between_runs.beyond.sd == pytest.approx(0.02 / math.sqrt(2))
    assert found.between_runs.beyond.df == pytest.approx(1)
    assert known_noise(NAIVE, known, {}, {}) is None
    assert known_noise(DDP, {}, {}, {}) is None


def test_calibrations_of_several_benchmarks_moderate_each_other() -> None:
    """Equal ones tell as much as all their runs together; of what was never calibrated no launches explain any."""
    known = {DDP: calibrated(0.02), NAIVE: calibrated(0.02)}
    own, other = known_noise(DDP, known, {}, {}), known_noise(NEITHER, known, {}, {})
    assert own is not None
    assert other is not None
    assert own.between_runs.beyond.sd == pytest.approx(0.02 / math.sqrt(2))
    assert own.between_runs.beyond.df == pytest.approx((4 + 8) / 4)
    assert other.between_runs.beyond.sd == pytest.approx(0.02)
    assert other.between_runs.beyond.df == pytest.approx(8)


def test_recorded_runs_of_a_benchmark_add_to_its_calibration() -> None:
    """Variances of 4 and 1 in 4 and 4 degrees of freedom, in units of 1e-4: 2.5; of the sampling 2 * 4 / 8 = 1."""
    recorded = {DDP: Noise(between_runs=RunSpread(centers=Spread(sd=0.01, df=4)))}
    found = known_noise(DDP, {DDP: calibrated(0.02)}, recorded, {})
    assert found is not None
    assert found.between_runs.beyond.sd == pytest.approx(math.sqrt(2.5 - 1) / 100)
    assert found.between_runs.beyond.df == pytest.approx(8 * (1.5 / 2.5) ** 2)
    assert known_noise(DDP, {}, recorded, {}) == recorded[DDP]


def of_runs(days: Sequence[str], *logs: float, launches: int = 2) -> BaselineRecord:
    """A baseline of runs with these logarithms of seconds, each of equal launches."""
    return replace(
        RECORD,
        series=(make_series("step_time", 1.0, samples=[math.exp(log) for log in logs for _ in range(launches)]),),
        steps=({"min": 0.1},) * launches * len(logs),
        runs=tuple(StoredRun(launches=launches, date=day) for day in days),
    )


def test_runs_of_a_baseline_tell_how_far_they_lie_apart() -> None:
    """0, 2, 4, 0, 4: variance 4; the means of their days are 1 and 8 / 3."""
    days = "2026-01-12", "2026-01-12", "2026-01-13", "2026-01-13", "2026-01-13"
    found = known_noise(DDP, {}, {}, {DDP: of_runs(days, 0, 2, 4, 0, 4)})
    assert found is not None
    assert (found.between_runs.beyond.sd, found.between_runs.beyond.df) == pytest.approx((2.0, 4))
    assert found.over_days is not None
    assert found.over_days.centers.sd == pytest.approx((8 / 3 - 1) / math.sqrt(2))


def test_fewer_than_five_runs_widen_nothing_of_however_many_days_they_are() -> None:
    assumed = Spread(sd=0.01, df=math.inf)
    for days in (("2026-01-12",) * 3, ("2026-01-12", "2026-01-13", "2026-01-14")):
        found = known_noise(DDP, {}, {}, {DDP: of_runs(days, 0, 2, 4)})
        assert found is not None
        told = (found.between_runs, found.over_days)
        assert [wider(spread, assumed) for spread in told if spread is not None] == [assumed] * len(set(days[:2]))


def test_runs_of_one_day_tell_nothing_of_what_lasts_and_baselines_moderate_each_other() -> None:
    day = "2026-01-12"
    records = {trained: of_runs((day,) * 3, 0, 2, 4) for trained in (DDP, NAIVE)}
    found, other = known_noise(DDP, {}, {}, records), known_noise(NEITHER, {}, {}, records)
    assert found is not None
    assert other is not None
    assert found.over_days is None
    assert (found.between_runs.beyond.sd, found.between_runs.beyond.df) == pytest.approx((2.0, 2 + 4))
    assert (other.between_runs.beyond.sd, other.between_runs.beyond.df) == pytest.approx((2.0, 4))


def test_quotients_by_a_control_step_have_a_spread_of_their_own() -> None:
    """Where the machine is slower in turn, steps take longer, and so does the control step: 0, 1, 2 are left."""
    record = of_runs(("2026-01-12",) * 3, 0, 2, 4)
    control = Control(seconds=tuple(math.exp(log) for log in (0, 0, 1, 1, 2, 2)))
    record = replace(record, series=(replace(record.series[0], control=control),))
    found = known_noise(DDP, {}, {}, {DDP: record, NAIVE: record})
    assert found is not None
    assert found.quotients is not None
    assert (found.quotients.centers.sd, found.quotients.centers.df) == pytest.approx((1, 2 + 4))
    assert found.between_runs.beyond.sd == pytest.approx(2)


def test_benchmarks_of_the_same_days_share_what_the_machine_did_on_them() -> None:
    records = {trained: of_runs(("2026-01-12", "2026-01-13", "2026-01-14"), 0, 2, 4) for trained in (DDP, NAIVE)}
    found = known_noise(DDP, {}, {}, records)
    assert found is not None
    assert found.over_days is not None
    assert found.over_days.centers.df == 2
