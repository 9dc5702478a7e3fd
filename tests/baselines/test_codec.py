from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpperf.baselines.codec import BaselineFile, decode, encode, environment_json
from pytest_ddpperf.baselines.store import Store
from pytest_ddpperf.errors import BaselineError
from pytest_ddpperf.metrics.table import counted_series
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.results import BaselineRecord, Provenance
from pytest_ddpperf.records.sites import CallSite
from tests.baselines.made_records import make_record
from tests.factories import make_series

FILE = Path("baselines/k/m/t.json")
DELETE = object()
EDITED = "field checksum: does not match the content: the file was edited by hand"


def file_of(*records: BaselineRecord) -> BaselineFile:
    return BaselineFile(test="m.py::t", records=records)


@pytest.fixture
def text() -> str:
    return encode(file_of(make_record(), make_record(name="weak", mode="weak", commit=None)), FILE)


def changed(text: str, path: str, value: Any) -> str:
    """The document with one value set (or taken out), as an editor would do it."""
    document = json.loads(text)
    *parents, last = path.split("/")
    place = document
    for step in parents:
        place = place[int(step) if isinstance(place, list) else step]
    if value is DELETE:
        del place[last]
    else:
        place[int(last) if isinstance(place, list) else last] = value
    return json.dumps(document)


def test_a_baseline_file_that_was_written_is_read_back() -> None:
    content = BaselineFile(test="m.py::t[ä]", records=(make_record(), make_record(name="b", series=())))
    assert decode(encode(content, FILE), FILE) == content


def test_recipe_and_counts_are_kept_to_the_last_digit_if_there_are_any() -> None:
    def of(counts: Counts) -> BaselineFile:
        return file_of(make_record(recipe={"precision": "bf16"}, counts=counts))

    counts = Counts(
        totals={"flops": 2281701377.0},
        details={"flops": {"head": 2281701377.0}},
        unstable={"operators": "add"},
        by_rank={"flops": (1.0,)},
    )
    apart = replace(counts, details_by_rank={"collective_calls": {"send": (0.0, 1.0)}})
    site = CallSite(
        part="all_reduce", file="a.py", line=1, function="f", source="x()", backward=True, value=16777217.25
    )
    placed = replace(
        counts, sites={"collective_calls": (site, replace(site, file="", line=0, source="", strategy="ddp"))}
    )
    twice = replace(placed, sites={"operators": (site, replace(site, part="aten.mm", value=2.0))})
    by_line = replace(placed, sites={"operators": (replace(site, part="all", value=16777219.25),)})
    assert encode(of(twice), FILE) == encode(of(by_line), FILE)
    for kept in (counts, apart, placed):
        content = of(kept)
        assert decode(encode(content, FILE), FILE) == content
        assert ("details_by_rank" in encode(content, FILE)) is (kept is apart)
        assert ("sites" in encode(content, FILE)) is (kept is placed)
    assert "recipe" not in encode(file_of(make_record()), FILE)


@pytest.fixture
def of_version_2(text: str) -> str:
    """A file as version 2 was written, with all that later ones lack, beside a record that only counts."""
    counts = Counts(totals={"flops": 8.0}, details={"flops": {"head": 8.0}}, unstable={})
    memory = make_series("peak_resident", 5e8, unit="B", samples=(5e8, 5e8))
    timed = make_record(series=(*make_record().series, memory), counts=counts, dirty=True)
    counted = make_record(name="counted", series=counted_series(counts), counts=counts)
    document = json.loads(encode(file_of(timed, counted), FILE))
    step_time, skew, peak = document["records"][0]["series"]
    control = {"seconds": [0.004, 0.004, 0.005]}
    document["records"][0] |= {
        "series": [{**step_time, "control": control}, {**step_time, "metric": "step_time_tail"}, skew, peak],
        "steps": {"min": [0.04, 0.0401]},
        "runs": [{"launches": 1, "date": "2026-01-12"}, {"launches": 1, "date": "2026-01-13", "lost": 0.25}],
    }
    return with_checksum({**document, "schema": "pytest-ddpperf/baseline/2"})


def with_checksum(document: dict[str, Any]) -> str:
    """The text of a file with the checksum that belongs to its content."""
    content = {name: value for name, value in document.items() if name != "checksum"}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return json.dumps({**content, "checksum": digest[:16]})


def test_a_file_of_version_2_keeps_counts_and_memory_and_marks_its_times(of_version_2: str) -> None:
    """Its step time is that of the usual steps; of its runs and its control step nothing is left."""
    timed, counted = decode(of_version_2, FILE).records
    assert [series.metric for series in timed.series] == ["step_time", "straggler_skew", "peak_resident"]
    assert (timed.series[0], timed.series[2].samples) == (make_record().series[0], (5e8, 5e8))
    assert (timed.typical, timed.dirty, timed.commit) == (True, True, make_record().commit)
    assert (timed.busy, timed.clock, timed.code) == (False, None, None)
    assert (
        timed.counts == counted.counts == Counts(totals={"flops": 8.0}, details={"flops": {"head": 8.0}}, unstable={})
    )
    assert not counted.typical


def test_times_of_version_2_stay_marked_when_their_file_is_written_again(of_version_2: str) -> None:
    """Another record of the test is saved, or new counts beside old times."""
    content = decode(of_version_2, FILE)
    written = encode(content, FILE)
    assert json.loads(written)["schema"] == "pytest-ddpperf/baseline/4"
    assert decode(written, FILE) == content


def test_statistics_of_the_steps_that_version_3_kept_are_dropped(text: str) -> None:
    document = json.loads(text)
    document["records"][0]["steps"] = {"min": [0.04, 0.0401]}
    older = with_checksum({**document, "schema": "pytest-ddpperf/baseline/3"})
    assert decode(older, FILE) == decode(text, FILE)


@pytest.mark.parametrize(
    ("name", "value", "wrong"),
    [
        ("dirty", True, 1),
        ("busy", True, 1),
        ("turns", True, 1),
        ("clock", 1.755e9, "fast"),
        ("code", "0123456789abcdef", 1),
        ("lost", 0.25, 1.5),  # of the cores
        ("counted", Provenance(date="2026-02-01", commit=None, dirty=True), {"date": "soon"}),
    ],
)
def test_usual_values_are_omitted_and_any_other_is_kept(text: str, name: str, value: Any, wrong: Any) -> None:
    """A quiet machine without GPUs, and clean code, leave nothing to tell."""
    assert f'"{name}"' not in text
    content = file_of(make_record(**{name: value}))
    assert decode(encode(content, FILE), FILE) == content
    with pytest.raises(BaselineError, match=rf"field records\[0\].{name}"):
        decode(changed(encode(content, FILE), f"records/0/{name}", wrong), FILE)


def test_a_series_that_is_read_has_the_rules_of_its_metric() -> None:
    """Else a run that had no time to diagnose seems to have lost what only such launches tell."""
    record = make_record()
    growth = replace(record.series[0], metric="memory_growth")
    text = encode(file_of(replace(record, series=(growth,))), FILE)
    assert decode(text, FILE).records[0].series[0].rules.diagnosed


def test_a_newer_schema_asks_for_an_upgrade(text: str) -> None:
    newer = changed(changed(text, "schema", "pytest-ddpperf/baseline/5"), "surprise", 1)
    with pytest.raises(BaselineError) as caught:
        decode(newer, FILE)
    assert str(caught.value) == (
        f"baseline file {FILE}: field schema is baseline/5, which a newer pytest-ddpperf wrote; "
        "this version reads baseline/4: upgrade pytest-ddpperf"
    )


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("schema", "pytest-ddpperf/results/1", "field schema: expected pytest-ddpperf/baseline/4, found"),
        ("schema", "pytest-ddpperf/baseline/0", "field schema: expected pytest-ddpperf/baseline/4, found"),
        ("schema", DELETE, "field schema: is missing, so this is no baseline file"),
        ("test", None, "field test: expected `str`, got `null`; "),
        ("checksum", DELETE, "field checksum: is missing"),
        ("extra", 1, "field extra: is unknown to this version"),
        ("records/0", 7, "field records[0]: expected `object`, got `int`"),
        ("records/0/recipe", {"x.y": 1}, "field records[0].recipe[...]: expected `str`, got `int`"),
        ("records", {}, "field records: expected `array`, got `object`"),
        ("records/1/name", "ddp", EDITED),
        ("records/0/mode", "\ud800", "'utf-8' codec can't encode character '\\ud800' in position 0: surrogates not"),
        ("records/1/name", "", "field records[1].name: expected `str` of length >= 1; "),
        ("records/0/mode", "sideways", "field records[0].mode: invalid enum value 'sideways'"),
        ("records/0/date", "2026-02-31", "field records[0].date: expected `str` matching regex "),
        ("records/0/environment/world_size", 0, "field records[0].environment.world_size: expected `int` >= 1"),
        ("records/0/environment/cores", -1, "field records[0].environment.cores: expected `int` >= 0"),
        ("records/0/plan/steps", -1, "field records[0].plan.steps: expected `int` >= 0"),
        ("records/0/plan/surprise", 1, "field records[0].plan.surprise: is unknown to this version"),
        ("records/0/environment/device", "tpu", "field records[0].environment.device: invalid enum value 'tpu'"),
        ("records/0/series/0/value", float("nan"), "field records[0].series[0].value: expected `float`, got `null`"),
        (
            "records/0/series/0/samples/1",
            float("inf"),
            "field records[0].series[0].samples[1]: expected `float`, got `null`",
        ),
        ("records/0/series/0/value", 10**150, f"field records[0].series[0].value: the number {10**150} is too large; "),
        ("records/0/series/0/value", 1e308, "field records[0].series[0].value: the number 1e+308 is too large; "),
        ("records/0/series/0/better", "more", "field records[0].series[0].better: invalid enum value 'more'"),
        (
            "records/0/series/0/interval/confidence",
            95,
            "field records[0].series[0].interval.confidence: expected `float` < 1.0",
        ),
    ],
)
def test_a_wrong_field_is_named(text: str, path: str, value: Any, problem: str) -> None:
    with pytest.raises(BaselineError) as caught:
        decode(changed(text, path, value), FILE)
    assert str(caught.value).startswith(f"baseline file {FILE}: {problem}")
    assert str(caught.value).endswith(
        "restore the file from version control, or delete it and measure again with --ddpperf-save"
    )


def test_only_gpus_have_a_setup() -> None:
    """So that files of CPUs stay as they are."""
    record = make_record()
    assert "gpu_setup" not in environment_json(record.environment)
    on_gpu = replace(record, environment=replace(record.environment, device="cuda", gpu_setup="nvlink 700w"))
    content = file_of(on_gpu)
    assert decode(encode(content, FILE), FILE) == content


def test_every_field_is_required(text: str) -> None:
    """Whatever field is taken out, its absence is named; a record of today is never read with gaps."""
    document = json.loads(text)["records"][0]
    objects = {"": document, "plan/": document["plan"], "environment/": document["environment"]}
    objects |= {"series/0/": document["series"][0], "series/0/interval/": document["series"][0]["interval"]}
    paths = [f"{prefix}{name}" for prefix, fields in objects.items() for name in fields]
    assert len(paths) == 8 + 2 + 12 + 10 + 3
    for path in paths:
        with pytest.raises(BaselineError, match=rf"{path.rpartition('/')[2]}: is missing"):
            decode(changed(text, f"records/0/{path}", DELETE), FILE)


def test_nan_is_never_written() -> None:
    record = make_record()
    series = replace(record.series[0], samples=(0.04, float("nan")))
    problem = r"field records\[0\]\.series\[0\]\.samples\[1\]: expected `float`, got `null`"
    with pytest.raises(BaselineError, match=f"was not written: {problem}; correct"):
        encode(file_of(replace(record, series=(series,))), FILE)


def test_the_name_of_a_file_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    """Python reads the byte 0xff of such a name as this half of a pair."""
    with pytest.raises(
        BaselineError, match=r"was not written: .* can't encode character '\\udcff'.*; correct the bench"
    ):
        Store(tmp_path).save("a\udcff/test_a.py::test_a", [make_record()])
    assert not list(tmp_path.rglob("*.json"))


def test_a_file_of_this_repository_is_written_as_it_was_read() -> None:
    """But for what an earlier version wrote, of which nothing is lost when it is written anew."""
    files = sorted((Path(__file__).parents[2] / "baselines").rglob("*.json"))
    assert len(files) > 20
    for file in files:
        text = file.read_text(encoding="utf-8")
        content = decode(text, file)
        written = encode(content, file)
        assert decode(written, file) == content, file
        assert written == text or json.loads(text)["schema"] == "pytest-ddpperf/baseline/2", file
