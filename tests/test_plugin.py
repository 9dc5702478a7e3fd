"""The plugin as a user meets it: whole pytest runs over small suites.

Step times are too noisy to hold a verdict here: every benchmark gets a tolerance of 1000 %, and what regresses is the
loss, which the suite reads from an environment variable, a hundredfold.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest

from pytest_ddpperf.baselines.history.database import entries
from pytest_ddpperf.errors import NOT_MEASURED
from pytest_ddpperf.instruments.host import usable_cores
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.launch.launchers import Launchers
from pytest_ddpperf.run.session import sides
from tests.factories import git

SETTINGS = """
import os
import pytest

pytestmark = pytest.mark.ddpperf(
    world_size=2, launches=2, steps=5, warmup=1, max_time=0.2, tolerance="1000%",
    backend="gloo", device="cpu", timeout=30,
)
"""
SUITE = (
    SETTINGS
    + """
def build(ctx):
    import torch

    matrix = torch.ones(128, 128)
    loss = float(os.environ.get("LOSS", "1"))

    def step():
        matrix @ matrix
        return loss

    return step


def test_step(ddpperf):
    measured = ddpperf.check(build, samples_per_step=4)
    assert measured.world_size == 2
    assert len(measured.launches) >= 2  # as many as the time allows, and no fewer
    assert None not in [launch.health for launch in measured.launches]
    assert measured["throughput"].value == pytest.approx(8 / measured["step_time"].value)


def test_other(ddpperf):
    ddpperf.check(lambda ctx: lambda: 1.0, steps=50)
"""
)
COUNTED = (
    SETTINGS
    + """
def test_step(ddpperf):
    ddpperf.check(lambda ctx: lambda: 1.0, counts='only')
"""
)


def verdicts(inner: pytest.Pytester, *arguments: str, apart: bool = False) -> tuple[pytest.RunResult, dict[str, Any]]:
    """A run of the suite, maybe in a process of its own, and the verdict of each of its tests out of the JSON file."""
    runpytest = inner.runpytest_subprocess if apart else inner.runpytest
    run = runpytest("--ddpperf-report=json:results.json", *arguments)
    results = json.loads((inner.path / "results.json").read_text())["results"]
    return run, {result["test"].partition("::")[2]: result["verdict"] for result in results}


def test_from_no_baseline_to_a_regression_and_its_acceptance(
    inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner.makepyfile(test_suite=SUITE)
    run, found = verdicts(inner, "--ddpperf-save", "--ddpperf-history=history.sqlite")
    run.assert_outcomes(passed=2)
    assert found == {"test_step": "new", "test_other": "new"}
    run.stdout.fnmatch_lines(
        [
            "*= ddpperf: PASSED: 2 new (no baseline) =*",
            "*test_step*custom*new*",
            "2 baselines saved in *: 2 new",
            "this run is number 1 *",
        ]
    )

    monkeypatch.setenv("LOSS", "100")
    of_this_run = "--ddpperf-history=history.sqlite", "--ddpperf-fail-on=regressed,broken"
    run, found = verdicts(inner, "--ddpperf-tolerance=900%", *of_this_run)
    run.assert_outcomes(passed=1, failed=1)
    assert run.ret == pytest.ExitCode.TESTS_FAILED
    assert found["test_step"] == "regressed"
    run.stdout.fnmatch_lines(
        [
            "custom: REGRESSED compared with baseline * 2 ranks, gloo",
            "final_loss *1.00 *100 *+99.0 *+10.0 *FAIL",
            'Intended?  pytest "test_suite.py::test_step" --ddpperf-tolerance=900% *',
            "*at test_suite.py:*in test_step",
        ]
    )

    losses = entries(inner.path / "history.sqlite", "final_loss", test="test_suite.py::test_step")
    assert [entry.value for entry in losses] == [1, 100]
    assert len(entries(inner.path / "history.sqlite", "step_time")) == 4
    assert entries(inner.path / "history.sqlite", "collective_calls")[0].value == 0

    run, found = verdicts(inner, "--ddpperf-save", "-k", "test_step")
    run.assert_outcomes(passed=1)
    run.stdout.fnmatch_lines(["*regressed (accepted)*", "*final_loss*1*->*100*"])
    run, found = verdicts(inner, "-k", "test_step")
    run.assert_outcomes(passed=1)
    assert set(found.values()) <= {"ok", "inconclusive"}  # stored times prove nothing more
    first = next(i for i, line in enumerate(run.outlines) if re.match("=+ ddpperf: ", line)) + 1
    assert re.match("WARNING test_step .*: times: only gross slowdowns can fail ", run.outlines[first])


def test_a_failed_test_is_not_stored(inner: pytest.Pytester) -> None:
    failing = """
def test_other(ddpperf):
    ddpperf.check(lambda ctx: lambda: 1.0, counts='only')
    assert False, 'after the measurement'
"""
    inner.makepyfile(test_suite=COUNTED + failing)
    run, _ = verdicts(inner, "--ddpperf-save")
    run.assert_outcomes(passed=1, failed=1)
    run.stdout.fnmatch_lines(["failed, so not stored: test_other"])
    without_terminal = inner.runpytest("-p", "no:terminal", "-k", "test_step")
    without_terminal.stderr.fnmatch_lines(["ddpperf: PASSED: 1 | against the baseline of *"])
    assert [path.name for path in inner.path.glob("baselines/*/*/*.json")] == ["test_step.json"]


def test_a_broken_baseline_fails_its_test_and_is_named(inner: pytest.Pytester) -> None:
    inner.makepyfile(test_suite=COUNTED)
    verdicts(inner, "--ddpperf-save")
    (file,) = inner.path.glob("baselines/*/*/*.json")
    file.write_text(file.read_text().replace('"commit": null', '"commit": "1"'))
    spoilt = file.read_text()
    run = inner.runpytest("-q", "--ddpperf-save")
    run.assert_outcomes(failed=1)
    run.stdout.fnmatch_lines([f"*baseline file {file}: field checksum: does not match *"])
    run.stdout.no_fnmatch_line("*Traceback*")
    assert file.read_text() == spoilt


def test_results_on_standard_output_are_whole(inner: pytest.Pytester) -> None:
    inner.makepyfile(test_suite=COUNTED)
    run = inner.runpytest("--ddpperf-report=json:-")
    run.assert_outcomes(passed=1)
    text = str(run.stdout)
    begin, end = text.index("\n{\n"), text.index("\n}\n") + 2
    (result,) = json.loads(text[begin:end])["results"]
    assert (result["test"], result["verdict"]) == ("test_suite.py::test_step", "new")


def test_a_mixed_suite_under_torchrun_is_refused_before_any_test(
    inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "none", "RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    inner.makepyfile("def test_it(ddpperf): pass\n\ndef test_ranks(ddpperf_group): pass\n\ndef test_other(): pass")
    run = inner.runpytest()
    assert run.ret == pytest.ExitCode.USAGE_ERROR
    run.stderr.fnmatch_lines(["ERROR: torchrun started 2 processes, but 1 of 3 tests do not use the fixtures of *"])
    inner.runpytest("-k", "test_other").assert_outcomes(passed=1, deselected=2)  # is none of ours


def test_code_that_cannot_be_measured_is_reported_in_one_line(inner: pytest.Pytester) -> None:
    """Each test fails with its one clear line and none of our frames; the last one passes."""
    inner.makepyfile(
        test_bad=SETTINGS
        + """
import threading

def test_nothing_built(ddpperf):
    ddpperf.check(lambda ctx: None)

def test_nan(ddpperf):
    ddpperf.check(lambda ctx: lambda: float("nan"))

def test_unsendable(ddpperf):
    lock = threading.Lock()
    ddpperf.check(lambda ctx: lambda: lock.locked())

def test_good(ddpperf):
    ddpperf.check(lambda ctx: lambda: 0.0)
"""
    )
    run, found = verdicts(inner)
    run.assert_outcomes(passed=1, failed=3)
    assert found["test_nan"] == "broken"
    assert found["test_good"] == "new"
    run.stdout.fnmatch_lines_random(
        [
            "*returned None: return a function that runs one training step*",
            "*loss is nan at warm-up step 1 on rank ?*",
            "the call cannot be sent to the ranks: closure variable 'lock' of <lambda> (test_bad.py:*",
        ]
    )
    run.stdout.no_fnmatch_line("*Traceback*")


def test_faults_of_ranks_fail_their_own_test_only(inner: pytest.Pytester) -> None:
    inner.makepyfile(
        test_faults=SETTINGS
        + """
def on_rank_1(fault):
    def build(ctx):
        import torch.distributed as dist

        def step():
            if ctx.rank == 1:
                fault()
            dist.barrier()
        return step
    return build

def unequal():
    assert 1 + 1 == 3

def test_asserts(ddpperf):
    ddpperf.check(on_rank_1(unequal))

def test_skips(ddpperf):
    ddpperf.check(on_rank_1(lambda: pytest.skip("not on this rank")))

def test_prints(ddpperf_group):
    def chatter(ctx):
        print("x" * 1_000_000)
        print("the end of rank", ctx.rank)
        return ctx.world_size
    assert ddpperf_group.run(chatter).values == (2, 2)
    assert ddpperf_group.world_size == 2
    raise AssertionError("to see the report")
"""
    )
    run = inner.runpytest("-q", "-rs")
    run.assert_outcomes(failed=2, skipped=1)
    run.stdout.fnmatch_lines(
        [
            "*_ test_asserts _*",
            "Cause      rank 1 of 2 *assert (1 + 1) == 3",
            "*_ test_prints _*",
            "*rank 1 stdout*",
            "*the end of rank 1",
            "SKIPPED*test_faults.py:*: not on this rank",
        ]
    )


def test_scaling_measures_all_sizes_side_by_side(inner: pytest.Pytester) -> None:
    inner.makepyfile(
        SETTINGS
        + """
import statistics

def build(ctx):
    import torch

    matrix = torch.ones(64, 64)
    return lambda: float((matrix @ matrix)[0, 0])

def test_curve(ddpperf):
    curve = ddpperf.scaling(build, world_sizes=[1, 2], mode="strong", samples_per_step=8)
    assert [point.world_size for point in curve.points] == [1, 2]
    assert curve.efficiency(1) == 1.0
    sides = (curve.point(size)["step_time"].samples for size in (1, 2))
    ratio = statistics.geometric_mean(one / two for one, two in zip(*sides, strict=True))  # of each round
    assert curve.speedup(2) == pytest.approx(ratio)
    assert curve.efficiency(2) == pytest.approx(ratio / 2)
    with pytest.raises(KeyError, match="no point has 4 ranks"):
        curve.efficiency(4)
    assert all(point.turns for point in curve.points)
    # strong: the global batch stays, so each of two ranks does half of its samples
    assert [point.launches[0].ranks[0].samples_per_step for point in curve.points] == [8, 4]
"""
    )
    run, found = verdicts(inner, "-v", "--ddpperf-counts=off")
    run.assert_outcomes(passed=1)
    assert found == {"test_curve": "new"}
    assert not (inner.path / "baselines").exists()
    if usable_cores() > 1:  # each rank has one of its own
        run.stdout.fnmatch_lines(["test_curve*: * with 2 ranks; serial fraction *(Amdahl)*"])


@pytest.mark.slow
def test_in_workers_of_xdist_benchmarks_are_skipped_with_one_warning(inner: pytest.Pytester) -> None:
    inner.makepyfile(
        """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_it(ddpperf, number): pass

def test_plain(): pass
"""
    )
    run = inner.runpytest_subprocess("-n", "1", "-rs")
    run.assert_outcomes(passed=1, skipped=3)
    assert run.ret == NOT_MEASURED
    run.stdout.fnmatch_lines(["*= ddpperf =*", "WARNING 3 benchmarks did not run, because *", "*run them with -n 0"])
    assert len([line for line in run.outlines if "-n 0" in line]) == 2  # there, and for all of them as the reason


@pytest.mark.slow
def test_tests_that_measure_nothing_may_run_in_xdists_workers(inner: pytest.Pytester) -> None:
    inner.makepyfile("def test_nothing(): pass")
    inner.makeini("[pytest]\nddpperf_history = runs.sqlite\n")
    run = inner.runpytest_subprocess("-n", "1", "--ddpperf-report=json:out.json")
    run.assert_outcomes(passed=1)
    assert run.ret == 0
    assert json.loads((inner.path / "out.json").read_text())["results"] == []


def test_a_setting_of_the_ini_file_can_be_reset(inner: pytest.Pytester) -> None:
    inner.makepyfile("def test_nothing(): pass")
    inner.makeini("[pytest]\nddpperf_against = nowhere\n")
    assert inner.runpytest().ret == pytest.ExitCode.USAGE_ERROR
    inner.runpytest("-o", "ddpperf_against=").assert_outcomes(passed=1)


def test_a_list_in_a_toml_file_is_equivalent_to_one_in_words(inner: pytest.Pytester) -> None:
    inner.makepyfile("def test_nothing(): pass")
    inner.makepyprojecttoml("[tool.pytest.ini_options]\nddpperf_world_size = [1, 2]\n")
    inner.runpytest("-W", "error").assert_outcomes(passed=1)


@pytest.mark.skipif(pytest.version_tuple < (9,), reason="pytest 8 reads no types from TOML")
def test_settings_may_have_the_types_of_toml(inner: pytest.Pytester) -> None:
    inner.makeconftest(
        """
from pytest_ddpperf.plugin import SETTINGS

def pytest_collection_finish(session):
    settings = session.config.stash[SETTINGS]
    print(settings.world_size, settings.max_time, settings.verify, settings.profile, len(settings.fail_on))
"""
    )
    inner.makepyprojecttoml(
        """
[tool.pytest]
ddpperf_world_size = [1, 2]
ddpperf_max_time = 3.5
ddpperf_verify = false
ddpperf_profile = true
ddpperf_fail_on = ["regressed"]
"""
    )
    run = inner.runpytest("-s", "-W", "error")
    run.stdout.fnmatch_lines(["*(1, 2) 3.5 False True 1"])
    run = inner.runpytest("-s", "--ddpperf-profile=false", "--ddpperf-verify=TRUE", "-o", "ddpperf_max_time=4")
    run.stdout.fnmatch_lines(["*(1, 2) 4.0 True False 1"])


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (["--ddpperf-profile", "test_it.py"], "profile True"),  # the path behind it is no folder for traces
        (["--ddpperf-profile=made/traces", "test_it.py"], "profile made/traces"),
        (["--ddpperf-profile=made", "--ddpperf-profile=again"], "profile again"),
        (["--ddpperf-profile=./on"], "profile on"),
        (["--ddpperf-profile=off"], "profile False"),
        ([], "profile in/addopts"),
    ],
)
def test_an_option_takes_a_folder_only_behind_its_sign(inner: pytest.Pytester, words: list[str], given: str) -> None:
    inner.makeconftest(
        """
from pytest_ddpperf.plugin import SETTINGS

def pytest_collection_finish(session):
    print("profile", session.config.stash[SETTINGS].profile)
"""
    )
    inner.makepyfile(test_it="def test_it(): pass", test_other="def test_other(): pass")
    inner.makeini("[pytest]\naddopts = --ddpperf-profile=in/addopts\n")
    run = inner.runpytest("-s", *words)
    run.stdout.fnmatch_lines([f"*{given}"])
    run.assert_outcomes(passed=1 if "test_it.py" in words else 2)


RERUN = """
import pytest
from _pytest.runner import runtestprotocol

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):  # as pytest-rerunfailures does it
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for _ in range(2):
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        if not any(report.failed for report in reports):
            break
        item._initrequest()
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    return True
"""
HEARS = """

def pytest_ddpperf_measured(test, attempt):
    hear("measured", test, attempt)

def pytest_ddpperf_verdict(result):
    hear("verdict", result.test, result.attempt)

def hear(*words):
    with open("heard", "a") as file:
        print(*words, file=file)
"""
PRINTS = """
def build(ctx):
    print("built on", ctx.rank)
    return lambda: 1.0
"""


def test_a_test_that_is_run_again_counts_once_and_its_report_has_the_output_of_its_ranks(
    inner: pytest.Pytester,
) -> None:
    inner.makeconftest(RERUN + HEARS)
    inner.makepyfile(
        test_again=SETTINGS
        + PRINTS
        + """
attempts = []

@pytest.mark.parametrize("needed", [1, 2, 3])
def test_it(ddpperf, needed):
    attempts.append(needed)
    ddpperf.check(build)
    assert attempts.count(needed) == needed
"""
    )
    options = ("--ddpperf-counts=only", "--ddpperf-save", "--ddpperf-history=history.sqlite", "-rP")
    run, found = verdicts(inner, *options)
    run.assert_outcomes(passed=2, failed=1)
    results = json.loads((inner.path / "results.json").read_text())["results"]
    remark = "attempt 2 of the test: measurements of earlier attempts are omitted"
    assert [remark in result["findings"] for result in results] == [False, True, True]
    assert len(found) == len(results) == 3
    assert len(entries(inner.path / "history.sqlite", "collective_calls")) == 3
    heard = (inner.path / "heard").read_text().splitlines()
    assert heard == [
        f"{what} test_again.py::test_it[{needed}] {attempt}"
        for needed, attempts in ((1, (1,)), (2, (1, 2)), (3, (1, 2)))
        for attempt in attempts
        for what in ("measured", "verdict")
    ], "hooks hear each attempt"
    run.stdout.fnmatch_lines(["*_ test_it?3? _*", "*- custom w2, rank 1 stdout -*", "built on 1"])
    run.stdout.fnmatch_lines(["*_ test_it?1? _*", "*- custom w2, rank 0 stdout -*", "built on 0"])
    notes = [line for line in run.outlines if line.startswith("failed, so")]
    assert notes == ["failed, so not stored: test_it[3]"]
    assert len(list(inner.path.glob("baselines/*/*/*.json"))) == 2


@pytest.mark.parametrize(
    ("arguments", "body", "reason"),
    [
        (("-x",), "assert False", "stopping after 1 failures"),
        ((), "__import__('pytest').exit('enough')", "interrupted"),
        ((), "__import__('pytest').exit('enough', returncode=4)", "interrupted"),
        ((), "pass", None),
    ],
)
def test_a_run_that_ends_early_says_so_in_its_results(
    inner: pytest.Pytester, arguments: tuple[str, ...], body: str, reason: str | None
) -> None:
    inner.makepyfile(f"def test_it(): {body}\n\ndef test_other(): pass")
    inner.runpytest("--ddpperf-report=json:results.json", *arguments)
    assert json.loads((inner.path / "results.json").read_text())["interrupted"] == reason


def test_unused_the_plugin_starts_nothing(inner: pytest.Pytester) -> None:
    inner.makepyfile("def test_nothing(): pass")
    run = inner.runpytest("--ddpperf-report=json:out.json")
    run.assert_outcomes(passed=1)
    run.stdout.no_fnmatch_line("*= ddpperf*")
    assert json.loads((inner.path / "out.json").read_text())["results"] == []


def test_a_report_that_cannot_be_written_at_the_end_fails_the_run(
    inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file turned into another while the tests ran, and the summary of the job lies below a file."""
    (inner.path / "file").write_text("")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(inner.path / "file" / "summary.md"))
    inner.makepyfile(
        SETTINGS
        + """
def test_step(ddpperf):
    ddpperf.check(lambda ctx: lambda: 1.0, counts='only')
    with open("history.sqlite", "w") as file:
        file.write("no database" * 100)
"""
    )
    run = inner.runpytest("--ddpperf-history=history.sqlite", "--ddpperf-report=markdown:comment.md")
    run.assert_outcomes(passed=1)
    assert run.ret == NOT_MEASURED
    for told in ("history file *", "GITHUB_STEP_SUMMARY: */summary.md cannot be written: *"):
        run.stdout.fnmatch_lines([f"WARNING {told}"])
    run.stdout.no_fnmatch_line("*Traceback*")


@pytest.mark.slow
def test_calibrating_measures_benchmarks_side_by_side_with_themselves(inner: pytest.Pytester) -> None:
    """Nothing is stored, and the baseline of before is not looked at."""
    inner.makepyfile(test_suite=SUITE)
    options = ("--ddpperf-report=json:results.json", "-o", "ddpperf_history=runs.sqlite")
    run = inner.runpytest("-q", "-oddpperf_calibrate=2", "-k", "test_step", *options)
    run.assert_outcomes(passed=1)
    run.stdout.fnmatch_lines(
        [
            "*= ddpperf calibration =*",
            "*test_step*custom*2*of 2*of 2*",
            "0 of 2 comparisons of unchanged code with itself were red",
        ]
    )
    document = json.loads((inner.path / "results.json").read_text())
    assert document["results"] == []
    assert not (inner.path / "runs.sqlite").exists()
    assert not (inner.path / "baselines").exists()
    (calibrated,) = document["calibration"]
    assert calibrated["false_alarms"]["of"] == calibrated["green"]["of"] == 2
    assert calibrated["gross"] >= 0.5


def test_a_quick_run_counts_takes_few_launches_and_stores_nothing(inner: pytest.Pytester) -> None:
    inner.makeini("[pytest]\nddpperf_budget = 1h\nddpperf_history = history.sqlite")
    inner.makepyfile(
        test_suite=SETTINGS.replace("launches=2", "launches=9") + "\n" + SUITE.partition("timeout=30,\n)\n")[2]
    )
    run, found = verdicts(inner, "--ddpperf-quick", "-k", "test_step")
    run.assert_outcomes(passed=1, deselected=1)
    assert found == {"test_step": "new"}
    (result,) = json.loads((inner.path / "results.json").read_text())["results"]
    assert result["launches"] == 2
    assert result["counts"]
    assert not (inner.path / "baselines").exists()
    assert not (inner.path / "history.sqlite").exists()


def test_without_capturing_the_terminal_shows_the_output_of_ranks(
    pytester: pytest.Pytester, launchers: Launchers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def like_ours(*, like: Launcher | None, echo: Any, **_: Any) -> Launcher:
        return Launcher(echo=echo, like=like or launchers[0])

    monkeypatch.setattr(sides, "Launcher", like_ours)
    pytester.makepyfile(
        """
def prints(ctx):
    print(f"of {ctx.world_size}")

def test_prints(ddpperf_group):
    ddpperf_group.run(prints)
"""
    )
    arguments = ("--ddpperf-world-size=2", "-p", "no:cacheprovider")
    result = pytester.runpytest_inprocess("-s", *arguments)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines_random(["[[]rank 0[]] of 2", "[[]rank 1[]] of 2"])
    assert "[rank 0]" not in pytester.runpytest_inprocess(*arguments).stdout.str()


def test_if_ranks_cannot_be_started_only_benchmarks_fail_with_one_sentence(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        "import sys, sysconfig, pytest_ddpperf.plugin; sysconfig.get_config_vars(); sys.platform = 'darwin'"
    )
    pytester.makepyfile("def test_plain(): pass\ndef test_b(ddpperf): pass\ndef test_g(ddpperf_group): pass\n")
    code = "import sys; sys.modules['fcntl'] = sys.modules['resource'] = None; import pytest; sys.exit(pytest.main())"
    done = pytester.run(sys.executable, "-c", code)
    sentence = "ranks need Linux, and this machine runs macOS: run the tests on a Linux machine"
    done.stdout.fnmatch_lines([f"ERROR test_*::test_{name} - {sentence}*" for name in "bg"])
    done.stdout.no_fnmatch_line("*ModuleNotFoundError*")
    done.assert_outcomes(passed=1, errors=2)


def test_a_debugger_stops_at_the_line_of_the_test(inner: pytest.Pytester) -> None:
    inner.makepyfile(
        recorder="""
        import pdb, traceback

        class Recorder(pdb.Pdb):
            def interaction(self, frame, found):
                frame, line = list(traceback.walk_tb(getattr(found, "__traceback__", found)))[-1]
                print("stopped in", frame.f_code.co_name)
        """,
        test_it="""
        def fails(ctx):
            raise ValueError("bad data")

        def test_it(ddpperf_group):
            ddpperf_group.run(fails)
        """,
    )
    run = inner.runpytest("--pdb", "--pdbcls=recorder:Recorder", "--ddpperf-world-size=2", "-s")
    run.assert_outcomes(failed=1)
    run.stdout.fnmatch_lines(["*stopped in test_it"])


@pytest.mark.parametrize(
    ("options", "heading", "reason"),
    [
        (["--ddpperf-require-baseline"], "1 failed (new)", "new: no baseline"),
        (["-k", "asserts"], "1 failed (new)", "its test failed: AssertionError: slow"),
    ],
)
def test_reports_begin_with_the_failure_of_a_test(
    inner: pytest.Pytester, options: list[str], heading: str, reason: str
) -> None:
    asserting = COUNTED.replace("test_step", "test_asserts") + "    raise AssertionError('slow')\n"
    inner.makepyfile(asserting if "-k" in options else COUNTED)
    kinds = {"markdown": "comment.md", "html": "page.html", "text": "report.txt"}
    written = [f"--ddpperf-report={kind}:{file}" for kind, file in kinds.items()]
    run, found = verdicts(inner, *options, *written)
    run.assert_outcomes(failed=1)
    assert [*found.values()] == ["new"]
    run.stdout.fnmatch_lines([f"    {reason.removeprefix('new: ')}*"])
    (result,) = json.loads((inner.path / "results.json").read_text())["results"]
    assert result["failure"].startswith(reason)
    for file in kinds.values():
        text = (inner.path / file).read_text()
        assert text.index(heading) < text.index(reason)


@pytest.mark.parametrize("lists", ["--collect-only", "--fixtures"])
def test_a_list_of_tests_leaves_the_last_results(inner: pytest.Pytester, lists: str) -> None:
    inner.makepyfile("def test_it(): pass")
    (inner.path / "results.json").write_text("those of the last run")
    inner.runpytest("--ddpperf-report=json:results.json", lists)
    assert (inner.path / "results.json").read_text() == "those of the last run"


def test_the_command_that_accepts_a_change_runs_in_the_current_folder(
    inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = inner.mkdir("perf")
    (folder / "test_it.py").write_text(COUNTED + "\n\ndef test_later(ddpperf):\n    pass\n")
    inner.makeini("[pytest]")
    ddpperf = "--ddpperf-counts=only", "--ddpperf-baseline-dir=my folder"
    inner.runpytest(*ddpperf, "--ddpperf-save").assert_outcomes(passed=2)
    changed = COUNTED.replace("lambda ctx: lambda: 1.0", "lambda ctx: lambda: __import__('torch').ones(2).sum()")
    assert changed != COUNTED
    (folder / "test_it.py").write_text(changed)
    monkeypatch.chdir(folder)
    run = inner.runpytest_subprocess(*ddpperf)
    run.stdout.fnmatch_lines(
        ["Intended?  pytest \"test_it.py::test_step\" --ddpperf-counts=only '--ddpperf-baseline-dir=my folder' *"]
    )


def test_plugins_of_pytest_may_be_switched_off(inner: pytest.Pytester) -> None:
    inner.makepyfile(COUNTED + "\n\ndef test_other():\n    __import__('pytest').fail('x')\n")
    inner.runpytest("-p", "no:capture").assert_outcomes(passed=1, failed=1)
    assert inner.runpytest("-p", "no:terminal").ret == pytest.ExitCode.TESTS_FAILED


def test_reports_say_which_tests_could_not_be_measured(inner: pytest.Pytester) -> None:
    lacking = "\n\ndef test_lacking(ddpperf):\n    ddpperf.check(__import__('pytest_ddpperf').Script('gone.py'))\n"
    inner.makepyfile(COUNTED + lacking)
    inner.runpytest("--ddpperf-report=markdown:comment.md").assert_outcomes(passed=1, failed=1)
    comment = (inner.path / "comment.md").read_text()
    assert "## ddpperf: FAILED: 1 test could not be measured, 1 new" in comment
    assert re.search(r"::test_lacking could not be measured: .*gone.py", comment)


@pytest.mark.slow
def test_a_run_that_sigterm_ends_writes_its_results(inner: pytest.Pytester) -> None:
    ending = "\n\ndef test_then(ddpperf):\n    import signal\n    signal.raise_signal(signal.SIGTERM)\n"
    inner.makepyfile(COUNTED + ending)
    run = inner.runpytest_subprocess("--ddpperf-report=json:results.json")
    assert run.ret == pytest.ExitCode.INTERRUPTED
    written = json.loads((inner.path / "results.json").read_text())
    assert [result["name"] for result in written["results"]] == ["custom"]
    assert written["interrupted"] == "interrupted"


def test_baselines_that_are_saved_without_a_commit_say_so(inner: pytest.Pytester) -> None:
    inner.makepyfile(COUNTED)
    told = "no commit has the code of these baselines, so later runs compare only stored times: {}"
    run = inner.runpytest("--ddpperf-save")
    run.stdout.fnmatch_lines([told.format("* is in no git*")])
    git(inner.path, "init")
    run = inner.runpytest("--ddpperf-save")
    run.stdout.fnmatch_lines([told.format("nothing is committed in*")])
    git(inner.path, "add", ".")
    git(inner.path, "commit", "-m", "first")
    (inner.path / "test_later.py").touch()
    git(inner.path, "add", ".")
    run = inner.runpytest("--ddpperf-save")
    run.stdout.fnmatch_lines([told.format("the code has uncommitted changes: *")])
    git(inner.path, "commit", "-m", "second")
    run = inner.runpytest("--ddpperf-save")
    run.stdout.no_fnmatch_line(told.format("*"))
