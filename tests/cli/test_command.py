from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ddpperf.baselines.history.database import record
from pytest_ddpperf.baselines.store import Store
from pytest_ddpperf.cli.command import main
from pytest_ddpperf.records.measurement import Interval
from pytest_ddpperf.records.verdict import Verdict
from tests.cli.running import Run
from tests.factories import make_baseline_record, make_environment, make_history_run, make_new_result, make_series

CPU = make_environment(cpu_model="AMD EPYC", cores=2, recorded={"host": "runner-1"})
STEP_TIME = make_series(
    "step_time", 0.0418, samples=(0.0412, 0.0424), interval=Interval(low=0.0412, high=0.0424, confidence=0.95)
)
RECORD = make_baseline_record(environment=CPU, series=(STEP_TIME,))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with baselines of two tests and a named set."""
    monkeypatch.chdir(tmp_path)
    Store(Path("baselines")).save("t.py::test_a[x]", [RECORD, replace(RECORD, name="naive")])
    Store(Path("baselines")).save("t.py::test_b", [RECORD])
    Store(Path("baselines"), "nightly").save("t.py::test_night", [RECORD])
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_list_shows_every_record(printed: Run) -> None:
    rows = [line.split()[:2] for line in printed("list").splitlines()[3:]]
    assert rows == [["t.py::test_a[x]", "ddp"], ["t.py::test_a[x]", "naive"], ["t.py::test_b", "ddp"]]


def test_list_reads_the_ini_file_as_pytest_does(
    folder: Path, printed: Run, complaint: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a folder below that of the file; an argument is stronger."""
    (folder / "perf").mkdir()
    (folder / "baselines").rename(folder / "perf" / "kept")
    ini = folder / "pytest.ini"
    ini.write_text("[pytest]\nddpperf_baseline_dir = perf/kept\nddpperf_baseline_set = nightly\n")
    monkeypatch.chdir(folder / "perf")
    assert "test_night" in printed("list")
    assert "test_a[x]" in printed("list", "--set", "default")
    assert "test_night" in printed("list", "--baselines", "kept", "--set", "nightly")
    assert "the folder of baselines none/@nightly does not exist" in complaint("list", "--baselines", "none")

    ini.write_text("[pytest]\nddpperf_baseline_dir = perf/kept\nddpperf_baseline_set = a/b\n")
    assert complaint("list").startswith("ddpperf: error: ddpperf_baseline_set = a/b: expected ")


@pytest.mark.parametrize("file", ["pyproject.toml", "setup.py"])
def test_list_in_a_subfolder_finds_the_project(
    folder: Path, printed: Run, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    (folder / file).touch()
    (folder / "perf").mkdir()
    monkeypatch.chdir(folder / "perf")
    assert "test_a[x]" in printed("list")


def test_list_names_a_broken_file_and_shows_the_rest(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Store(folder / "baselines").file("t.py::test_b", CPU).write_text("{")
    assert main(["list"]) == 2
    out, err = capsys.readouterr()
    assert "test_a[x]" in out
    assert err.startswith("ddpperf: error: baseline file ")
    assert "test_b.json: is cut off at line 1" in err
    assert err.count("\n") == 1


def test_list_of_an_empty_folder_says_that_there_are_no_baselines(tmp_path: Path, printed: Run) -> None:
    said = f"no baselines in {tmp_path}; pytest --ddpperf-save stores some\n"
    assert printed("list", "--baselines", tmp_path) == said


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("test", ["t.py::test_b", "test_b ddp"])
def test_show_prints_the_record_of_a_test(test: str, printed: Run) -> None:
    out = printed("show", test)
    assert out.startswith("t.py::test_b: ddp\n")
    assert "41.8 ms" in out
    assert "41.2 .. 42.4" in out


@pytest.mark.usefixtures("folder")
def test_show_has_a_table_for_each_record(printed: Run) -> None:
    titles = [line for line in printed("show", "test_").splitlines() if line.startswith("t.py")]
    assert titles == ["t.py::test_a[x]: ddp", "t.py::test_a[x]: naive", "t.py::test_b: ddp"]


def test_show_says_if_the_newest_run_improved_on_the_baseline(folder: Path, printed: Run) -> None:
    (folder / "pytest.ini").write_text("[pytest]\nddpperf_history = runs.sqlite\n")
    assert "stale" not in printed("show", "test_b"), "there is no history yet"

    def ran(day: str, verdict: Verdict) -> str:
        result = make_new_result("t.py::test_b", STEP_TIME, environment=CPU)
        record(folder / "runs.sqlite", make_history_run(0, date=day), [replace(result, verdict=verdict)])
        return printed("show", "test_b").splitlines()[-1]

    assert "stale" not in ran("2026-01-11T00:00:00+00:00", Verdict.IMPROVED), "it is older than the baseline"
    assert ran("2026-01-13T00:00:00+00:00", Verdict.IMPROVED) == (
        'stale: the run of 2026-01-13 was better; save again with: pytest "t.py::test_b" --ddpperf-world-size=2 '
        "--ddpperf-save"
    )
    assert "stale" not in ran("2026-01-14T00:00:00+00:00", Verdict.OK)


def test_show_prints_the_records_of_a_file(folder: Path, printed: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    file = Store(folder / "baselines").file("t.py::test_b", CPU)
    monkeypatch.chdir(file.parent)  # where there is no folder of baselines, and the file's name alone is enough
    assert printed("show", file.name).startswith("t.py::test_b: ddp\n")
    monkeypatch.chdir(folder)
    (folder / "t.py").touch()  # a part of the node IDs, and no file of baselines
    assert "t.py::test_b: ddp" in printed("show", "t.py")


@pytest.mark.usefixtures("folder")
def test_show_of_a_name_without_a_baseline_is_refused(complaint: Run) -> None:
    """A command of the terminal in a name is shown, and not sent."""
    assert complaint("show", "x\x1b[2J") == (
        "ddpperf: error: no baseline in baselines has x\\x1b[2J in its name; ddpperf list shows all names\n"
    )


@pytest.mark.parametrize("status", [0, 1])
def test_a_reader_that_leaves_early_is_no_error(folder: Path, status: int) -> None:
    """As in ``ddpperf list | head -0``: the pipe is closed before the first line. What was found stays the status."""
    code = f"""
import sys
from pytest_ddpperf.cli import command

found = command._list
command._list = lambda options: found(options) or {status}
sys.exit(command.main())
"""
    pipe = subprocess.PIPE
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    process = subprocess.Popen([sys.executable, "-c", code, "list"], cwd=folder, env=environ, stdout=pipe, stderr=pipe)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    stderr = process.stderr.read()
    process.stderr.close()
    assert (process.wait(60), stderr) == (status, b"")


def test_ctrl_c_is_reported_without_a_traceback(monkeypatch: pytest.MonkeyPatch, complaint: Run) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pytest_ddpperf.cli.report.read_run", interrupted)
    assert complaint("report", "run.json", status=130) == "\ninterrupted\n"


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        ("calibrate -k small perf --runs 7 --run x", "-oddpperf_calibrate=7 -k small perf --run x"),
        ("calibrate", "-oddpperf_calibrate=5"),
        ("simulate a.py --world-size 64,8 --rank 7 -x", "-oddpperf_simulate=8,64 -oddpperf_simulate_rank=7 a.py -x"),
        (
            "simulate --world-size=9 --network=pcie-ethernet1 --ranks-per-node=4",
            (
                "-oddpperf_simulate=9 -oddpperf_simulate_rank=0 -oddpperf_network=pcie-ethernet1 "
                "-oddpperf_ranks_per_node=4"
            ),
        ),
    ],
)
def test_calibrate_and_simulate_run_pytest_with_their_options_and_unknown_arguments(
    monkeypatch: pytest.MonkeyPatch, given: str, passed: str
) -> None:
    became: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda _file, command: became.append(command))
    main(given.split())
    assert became == [[sys.executable, "-m", "pytest", *passed.split()]]


def test_a_name_that_is_too_long_is_an_error_of_one_line(complaint: Run) -> None:
    (line,) = complaint("show", "x" * 300 + ".json").splitlines()
    assert line.startswith("ddpperf: error: [Errno 36] File name too long: ")
    assert line.endswith(".json'; name another file or folder")


def test_a_file_that_does_not_fit_into_memory_is_an_error_of_one_line(
    monkeypatch: pytest.MonkeyPatch, complaint: Run
) -> None:
    def read_pins(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("pytest_ddpperf.cli.bisect.package_search.read_pins", read_pins)
    said = "ddpperf: error: a file is too large; name another file or folder\n"
    assert complaint("bisect", "--packages", "old.txt", "new.txt") == said


def test_a_current_folder_that_was_removed_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, complaint: Run
) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    assert complaint("list") == "ddpperf: error: the current folder was removed; run pytest in a folder that exists\n"
