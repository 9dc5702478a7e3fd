"""The format of baseline files: converts records to JSON and back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from pytest_ddpperf.baselines import jsonfile
from pytest_ddpperf.errors import BaselineError
from pytest_ddpperf.metrics.table import rules_of
from pytest_ddpperf.records.alike import Alike
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.measurement import Environment, Interval, Plan, Series
from pytest_ddpperf.records.results import BaselineRecord, Provenance
from pytest_ddpperf.records.sites import CallSite, of_lines

BASELINE = jsonfile.FileKind(
    subject="baseline",
    version=4,  # without statistics of the steps of each launch
    cure="restore the file from version control, or delete it and measure again with --ddpperf-save",
)


@dataclass(frozen=True, kw_only=True)
class BaselineFile:
    """All records of one test in one environment, with distinct names."""

    test: str  # pytest node id
    records: tuple[BaselineRecord, ...]


_OLDER = (Any, None)  # type and default of a field that only older files have; its value is not used
_Environment = jsonfile.object_of(
    Environment,
    sparse=("gpu_setup",),
    device=Literal["cpu", "cuda"],
    device_count=jsonfile.Natural,
    cores=jsonfile.Natural,
    threads=jsonfile.Natural,
    nodes=jsonfile.Positive,
    world_size=jsonfile.Positive,
)
_Site = jsonfile.object_of(CallSite, sparse=("strategy", "through", "caller", "caller_source"))
_Counts = jsonfile.object_of(
    Counts,
    without=("copy",),
    sparse=("details_by_rank", "sites", "sites_by_rank", "alike", "steps", "varying"),
    sites=Mapping[str, tuple[_Site, ...]],  # type: ignore[valid-type]  # made at run time
    sites_by_rank=Mapping[str, Mapping[str, tuple[_Site, ...]]],  # type: ignore[valid-type]  # made at run time
    alike=jsonfile.object_of(Alike, without=("sites",), sparse=("copies", "data")) | None,
)
_Series = jsonfile.object_of(
    Series,
    without=("within", "own", "rules"),  # computed from the launches of a run, or from the table of metrics
    rename={"min_tolerance": "slack"},
    interval=jsonfile.object_of(Interval, confidence=jsonfile.Confidence) | None,
    control=_OLDER,
)
_Record = jsonfile.object_of(
    BaselineRecord,
    sparse=("recipe", "counts", "dirty", "counted", "turns", "over", "busy", "clock", "code", "typical"),
    name=jsonfile.Text,
    date=jsonfile.Date,
    environment=_Environment,
    plan=jsonfile.object_of(Plan, warmup=jsonfile.Natural, steps=jsonfile.Natural),
    counted=jsonfile.object_of(Provenance, sparse=("code",), date=jsonfile.Date) | None,
    series=tuple[_Series, ...],  # type: ignore[valid-type]  # made at run time
    counts=_Counts | None,
    steps=_OLDER,
    lost=(jsonfile.Share | None, None),
    runs=_OLDER,
)
_File = jsonfile.object_of(
    BaselineFile,
    schema=str,
    checksum=str,
    test=jsonfile.Text,
    records=tuple[_Record, ...],  # type: ignore[valid-type]  # made at run time
)


def series_json(series: Series) -> Any:
    """Returns a metric as JSON data; counts, which are compared exactly, keep all digits."""
    return jsonfile.json_of(_Series, _short(series))


def environment_json(environment: Environment) -> Any:
    """Returns an environment as JSON data."""
    return jsonfile.json_of(_Environment, environment)


def _short(series: Series) -> Series:
    """Returns a metric with its numbers rounded to nine digits; counts keep all digits."""
    found, exact = series.interval, series.scale == "exact"
    return replace(
        series,
        min_tolerance=jsonfile.rounded(series.min_tolerance),
        samples=series.samples if exact else tuple(map(jsonfile.rounded, series.samples)),
        value=series.value if exact else jsonfile.rounded(series.value),
        interval=found and replace(found, low=jsonfile.rounded(found.low), high=jsonfile.rounded(found.high)),
    )


def _stored(record: BaselineRecord) -> BaselineRecord:
    """Returns a record as files store it: times are rounded; operators and FLOPs have one sum for each line of code."""
    changes: dict[str, Any] = {
        "series": tuple(map(_short, record.series)),
        "lost": jsonfile.rounded(record.lost) or None,
    }
    if record.counts is not None:
        by_line = ("flops", "operators")
        sites = {name: of_lines(each) if name in by_line else each for name, each in record.counts.sites.items()}
        details = {metric: parts for metric, parts in record.counts.details.items() if parts}
        changes["counts"] = replace(record.counts, details=details, sites=sites)
    return replace(record, **changes)


def _read(stored: Any, schema: str) -> BaselineRecord:
    """Returns the record in a file of the current or an older ``schema``."""
    typical = stored.typical or (schema.endswith(("/1", "/2")) and bool(stored.steps))
    stored = msgspec.structs.replace(stored, lost=stored.lost or 0.0, typical=typical)
    record = msgspec.convert(stored, BaselineRecord, from_attributes=True)
    kept = [series for series in record.series if series.metric != "step_time_tail"]
    return replace(record, series=tuple(replace(series, rules=rules_of(series.metric)) for series in kept))


def encode(content: BaselineFile, file: Path) -> str:
    """Returns the text of a baseline file, with nine digits in times; raises BaselineError if a value is NaN."""
    records = list(map(_stored, content.records))
    try:
        document = jsonfile.json_of(
            _File, {"schema": BASELINE.schema, "checksum": "", "test": content.test, "records": records}
        )
        document["checksum"] = _checksum(document)
        msgspec.convert(document, _File)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # the latter for names of files that are not UTF-8
        problem = jsonfile.problem_text(error)
        raise BaselineError(
            f"{BASELINE.name} {file} was not written: {problem}; correct the benchmark, then save again"
        ) from None
    return jsonfile.render(document)


def decode(text: str, file: Path) -> BaselineFile:
    """Returns the content of a baseline file; raises BaselineError if the file is broken or was edited by hand."""
    data = jsonfile.checked(text, file, BASELINE)
    found = jsonfile.read_as(_File, data, file, BASELINE)
    if found.checksum != _checksum(data):
        raise BASELINE.error(file, "field checksum: does not match the content: the file was edited by hand")
    return BaselineFile(test=found.test, records=tuple(_read(record, found.schema) for record in found.records))


def _checksum(document: Mapping[str, Any]) -> str:
    """Returns a hash of a document's values; another layout of the JSON text does not change it."""
    content = {name: value for name, value in document.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
