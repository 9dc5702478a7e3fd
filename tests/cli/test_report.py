"""The commands that show the files of runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ddpperf.against.git import Checkout
from pytest_ddpperf.baselines.jsonfile import render
from pytest_ddpperf.cli.command import main
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.results import Result
from pytest_ddpperf.reports.documents.run_file import read_run
from pytest_ddpperf.reports.formats.kinds import KINDS
from tests.analysis.traces.made_traces import collective, document, event, step
from tests.cli.running import Run
from tests.factories import make_environment, make_launch, make_new_result, make_results_document, make_series
from tests.shell import shown

CPU = make_environment(cpu_model="AMD EPYC", cores=2)


def result(test: str, step_time: float, calls: float = 2.0, **fields: object) -> Result:
    step = make_series("step_time", step_time, samples=tuple(step_time * (1 + i / 100) for i in (-1, 0, 1, 0)))
    counted = {"scale": "exact", "unit": "1", "family": "counted", "samples": (calls,)}
    made = make_new_result(
        test,
        make_series("collective_calls", calls, **counted),
        step,
        make_series("throughput", 32 / step_time, unit="samples/s", better="higher"),
        **{"environment": CPU, "launches": (make_launch((step_time,), (step_time,)),) * 4, **fields},
    )
    steps = replace(made["throughput"].series, rules=replace(step.rules, repeats_step_time=True))
    return replace(made, comparisons=(*made.comparisons[:2], replace(made.comparisons[2], series=steps)))


def written(file: Path, *results: Result) -> Path:
    code = Checkout(file.stem * 7 + "0" * 33, "main", dirty=False)
    file.write_text(render(make_results_document(results, code, date="2026-01-12T10:00:00+00:00")))
    return file


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return written(tmp_path / "a.json", result("t.py::test_a", 0.04))


def test_each_kind_is_an_option_and_several_are_written_at_once(run: Path, tmp_path: Path, printed: Run) -> None:
    files = {kind: tmp_path / "folder" / kind for kind in KINDS}
    assert printed("report", run, *(f"--{kind}={file}" for kind, file in files.items())) == ""
    for kind, file in files.items():
        assert file.read_text() == KINDS[kind].render(read_run(run))
    assert printed("report", run, "--csv=-") == files["csv"].read_text()


def test_pictures_are_drawn_into_a_folder(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run), "--plots", str(tmp_path / "pictures")]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"2 pictures in {tmp_path / 'pictures'}\n")
    files = {file.name for file in (tmp_path / "pictures").iterdir()}
    assert files == {"steps.t.test_a-ddp-w2.png", "launches.t.test_a-ddp-w2-step_time.png"}


def test_without_a_kind_the_report_is_printed(run: Path, printed: Run) -> None:
    assert printed("report", run).startswith("Performance report\n")


def test_two_runs_are_compared_metric_by_metric(run: Path, tmp_path: Path, printed: Run) -> None:
    other = written(tmp_path / "b.json", result("t.py::test_a", 0.05, calls=8.0), result("t.py::test_b", 0.01))
    lines = printed("compare", run, other).splitlines()
    assert lines[0] == "aaaaaaa, 2026-01-12, 1 benchmark -> bbbbbbb, 2026-01-12, 2 benchmarks"
    assert [" ".join(line.split()) for line in lines[3:5]] == [
        "test_a ddp step_time 40.0 ms 50.0 ms +25.0 % [95 % CI +22.7 .. +27.3]",
        "test_a ddp collective_calls 2 8 +300.0 % [counted]",
    ]
    assert "only in the second run: test_b ddp" in lines


def test_the_status_says_whether_the_second_run_is_worse(
    tmp_path: Path, printed: Run, complaint: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    def counted(name: str, calls: float) -> str:
        counts = Counts(
            totals={"collective_calls": calls}, details={"collective_calls": {"all_reduce": calls}}, unstable={}
        )
        made = result("t.py::test_\x1b", 0.04, calls, counts=counts)  # with what a terminal would obey
        return str(written(tmp_path / f"{name}.json", replace(made, comparisons=made.comparisons[:1])))

    few, many = counted("a", 2.0), counted("b", 3.0)
    why = "regressed: test_\\x1b ddp: all_reduce 2 -> 3 calls\n"
    printed("compare", few, few)
    assert printed("compare", few, many, status=1).endswith(f"\n{why}")
    assert complaint("compare", few, many, "--markdown", "-", status=1) == why
    printed("compare", few, many, "--fail-on=none")
    printed("compare", many, few)
    printed("compare", many, few, "--fail-on=+improved", status=1)
    with pytest.raises(SystemExit) as wrong:
        main(["compare", few, many, "--fail-on=worse"])
    assert wrong.value.code == 2
    assert "argument --fail-on: expected none, or verdicts" in capsys.readouterr().err


def test_times_of_other_machines_are_not_compared(run: Path, tmp_path: Path, printed: Run) -> None:
    other = make_environment(cpu_model="Xeon", cores=2)
    slower = written(tmp_path / "b.json", result("t.py::test_a", 0.05, calls=8.0, environment=other))
    out = printed("compare", run, slower)
    (step,) = [line for line in out.splitlines() if " step_time " in line]
    assert step.endswith(" -")
    assert "test_a ddp: times are not compared: CPU AMD EPYC -> Xeon" in out
    assert "counted" in out


def test_benchmarks_whose_counts_differ_come_first_and_those_that_do_not_are_named_in_a_line(
    tmp_path: Path, printed: Run
) -> None:
    def counted(test: str, calls: float) -> Result:
        made = result(test, 0.04, calls)
        return replace(made, comparisons=made.comparisons[:1])

    before = [result("t.py::test_a", 0.04), counted("t.py::test_b", 2), counted("t.py::test_c", 2)]
    after = [result("t.py::test_a", 0.04), counted("t.py::test_b", 2), counted("t.py::test_c", 3)]
    files = [str(written(tmp_path / f"{name}.json", *each)) for name, each in (("a", before), ("b", after))]
    lines = printed("compare", *files).splitlines()
    assert [line.split()[0] for line in lines[3:5]] == ["test_c", "test_a"]
    assert "no metric that can fail a test differs in test_b ddp" in lines


def test_two_runs_are_a_page(run: Path, tmp_path: Path, printed: Run) -> None:
    page, table = tmp_path / "two.html", tmp_path / "two.md"
    assert printed("compare", run, run, "--html", page, "--markdown", table) == ""
    assert page.read_text().startswith("<!doctype html>")
    assert table.read_text().startswith("| benchmark | metric |")


@pytest.mark.parametrize(("document", "field"), [("results", "interrupted"), ("trend", "trends")])
def test_the_schema_of_a_document_is_printed(document: str, field: str, printed: Run) -> None:
    schema = json.loads(printed("schema", document))
    (whole,) = [part for part in schema["$defs"].values() if field in part.get("properties", ())]
    assert whole["properties"]["schema"]["enum"] == [f"pytest-ddpperf/{document}/{3 if document == 'results' else 2}"]


MS = 1000.0


def write(folder: Path, name: str, product: float, *, more: bool = False) -> None:
    """Two ranks, of which the second one comes 1 ms later to an all-reduce."""
    folder.mkdir(exist_ok=True)
    for rank in (0, 1):
        extra = [event("aten::sort", 8 * MS, 9 * MS), collective(9 * MS, 9.5 * MS, 1)] if more else []
        whole = step(0, (12 if more else 10) * MS)
        events = [whole, event("aten::mm", 0, product), collective((3 + rank) * MS, 5 * MS, 250), *extra]
        (folder / f"{name}_rank_{rank}_trace.json").write_text(json.dumps(document(rank, 2, *events)))


def test_a_summary_has_each_rank_and_names_the_rank_that_comes_last(tmp_path: Path, printed: Run) -> None:
    write(tmp_path / "A", "x", 4 * MS)
    lines = printed("trace", "summary", tmp_path / "A", "--merge", tmp_path / "all.json").splitlines()
    assert lines[0] == f"{tmp_path}/A/x: 2 ranks, 1 step"
    rows = [line.split() for line in lines if line.split()[:1] in (["0"], ["1"])]
    assert rows == [
        ["0", "10.0", "4.00", "(40", "%)", "2.00", "(20", "%)", "50", "5.00", "(50", "%)"],
        ["1", "10.0", "4.00", "(40", "%)", "1.00", "(10", "%)", "0", "5.00", "(50", "%)"],
    ]
    waits = "a rank waits 500 us of a step for the last rank, and the transfer takes 1.00 ms"
    assert shown("traces.md", "came last").splitlines() == [f"rank 1 came last to 100 % of the collectives; {waits}"]
    assert set(shown("traces.md", "came last").splitlines()) < set(lines)
    assert lines[-1] == (
        "merged on the clock of rank 0, aligned by the ends of 1 common collective; moved: rank 1 by 0 s +- 2.00 ms"
    )
    assert {each["pid"] // 1000 for each in json.loads((tmp_path / "all.json").read_text())["traceEvents"]} == {0, 1}


def test_a_difference_has_totals_and_names_the_operators_that_changed(tmp_path: Path, printed: Run) -> None:
    write(tmp_path / "A", "x", 4 * MS)
    write(tmp_path / "B", "x", 6 * MS, more=True)
    lines = printed("trace", "diff", tmp_path / "A", tmp_path / "B").splitlines()
    assert lines[:4] == [f"A: {tmp_path}/A/x", f"B: {tmp_path}/B/x", "", "a step: 10.0 ms -> 12.0 ms, +20.0 %"]
    assert [line.split() for line in lines[7:12]] == [
        ["all", "operator", "1", "2", "4.00", "7.00", "total"],
        ["all", "collective", "1", "2", "1.50", "2.00", "total"],
        ["aten::sort", "operator", "-", "1", "-", "1.00", "added"],
        ["all_reduce", "of", "4", "B", "collective", "-", "1", "-", "0.500", "added"],
        ["aten::mm", "operator", "1", "1", "4.00", "6.00", "slower"],
    ]
    assert shown("traces.md", "a step: ").splitlines() == lines[3:12]
    assert "2 more changes not shown" in printed("trace", "diff", tmp_path / "A", tmp_path / "B", "--most", "1")
    assert "aten::mm" not in printed("trace", "diff", tmp_path / "A", tmp_path / "B", "--least", "30%")


def test_traces_that_cannot_be_shown_are_named(tmp_path: Path, complaint: Run) -> None:
    write(tmp_path / "A", "x", 4 * MS)
    write(tmp_path / "A", "y", 4 * MS)
    assert f"--merge: {tmp_path} cannot be written: " in complaint(
        "trace", "summary", tmp_path / "A" / "x", "--merge", tmp_path
    )
    assert complaint("trace", "summary", tmp_path / "gone").startswith(
        f"ddpperf: error: there is no trace at {tmp_path}/gone: name a folder"
    )
    assert "--merge=all.json merges traces of one benchmark, not of 2: name one" in complaint(
        "trace", "summary", tmp_path / "A", "--merge", "all.json"
    )
    (tmp_path / "A" / "x_rank_0_trace.json").write_text("{")
    assert "x_rank_0_trace.json is not a Chrome trace: " in complaint(
        "trace", "diff", tmp_path / "A" / "x", tmp_path / "A" / "y"
    )
