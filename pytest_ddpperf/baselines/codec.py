"""The format of baseline files: how each record lies in JSON, for writing and reading."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from pytest_ddpperf.baselines.jsonfile import FileKind, checked, render, rounded
from pytest_ddpperf.baselines.typed import AnyText, Confidence, Day, Misfit, Positive, Shape, Share, read, written
from pytest_ddpperf.errors import BaselineError
from pytest_ddpperf.metrics.table import rules_of
from pytest_ddpperf.records.copies import Alike
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.measurement import Environment, Interval, Series
from pytest_ddpperf.records.results import BaselineRecord, Provenance
from pytest_ddpperf.records.sites import CallSite, of_lines


@dataclass(frozen=True, kw_only=True)
class BaselineFile:
    """All records of one test in one environment; their names tell them apart."""

    test: str  # pytest node id
    records: tuple[BaselineRecord, ...]


def encode(content: BaselineFile, file: Path) -> str:
    """The text of a baseline file, times with nine digits; BaselineError if it could not be read again (a NaN)."""
    document = json.loads(json.dumps({"schema": BASELINE.schema, **data_of(content)}))
    document["checksum"] = _checksum(document)
    try:
        read(BaselineFile, document, _SHAPES)
    except Misfit as misfit:
        raise BaselineError(
            f"{BASELINE.name} {file} was not written: {misfit}; mend the benchmark, then save again"
        ) from None
    return render(document)


def decode(text: str, file: Path) -> BaselineFile:
    """The content of a baseline file; BaselineError if it is broken or was edited by hand."""
    data = checked(text, file, BASELINE)
    try:
        content = read(BaselineFile, _upgraded(data), _SHAPES)
    except Misfit as misfit:
        raise BASELINE.error(file, str(misfit)) from None
    if data["checksum"] != _checksum(data):
        raise BASELINE.error(file, "field checksum: does not match the content: the file was edited by hand")
    return cast("BaselineFile", content)


def _upgraded(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The data of a file of today; in files before version 3 a step time is that of the usual steps."""
    if data["schema"] == BASELINE.schema or not isinstance(data.get("records"), list):
        return data
    gone = {"runs"}, {"control"}

    def without(found: Any, names: set[str]) -> Any:
        return {name: value for name, value in found.items() if name not in names} if isinstance(found, dict) else found

    def upgraded(record: Any) -> Any:
        record = without(record, gone[0])
        if not isinstance(record, dict) or not isinstance(record.get("series"), list):
            return record
        kept = [
            each for each in record["series"] if not isinstance(each, dict) or each.get("metric") != "step_time_tail"
        ]
        return {**record, "series": [without(each, gone[1]) for each in kept], "typical": bool(record.get("steps"))}

    return {**data, "records": [upgraded(record) for record in data["records"]]}


def data_of(record: Any) -> dict[str, Any]:
    """A record, or a part of one, as JSON data; counts keep all their digits, because they are compared exactly."""
    return cast("dict[str, Any]", written(record, _SHAPES))


def _checksum(document: Mapping[str, Any]) -> str:
    """A hash of the content, not of its layout: a formatter may run over the file, an editor may not."""
    content = {name: value for name, value in document.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _file(*, test: str, records: tuple[BaselineRecord, ...], schema: str, checksum: str) -> BaselineFile:  # noqa: ARG001
    """A file whose records have names of their own."""
    names = [record.name for record in records]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise Misfit(f"a second record is named {name!r}", f".records[{i}]")
    return BaselineFile(test=test, records=records)


def _record(*, steps: Mapping[str, tuple[float, ...]], **fields: Any) -> BaselineRecord:
    """A record, of which the file has one list for each statistic of the steps."""
    lengths = sorted({len(column) for column in steps.values()})
    if len(lengths) > 1:
        raise Misfit(f"expected lists of one length, found {', '.join(map(str, lengths))}", ".steps")
    rows = zip(*steps.values(), strict=True)
    return BaselineRecord(steps=tuple(dict(zip(steps, row, strict=True)) for row in rows), **fields)


def _record_fields(record: BaselineRecord) -> dict[str, Any]:
    names = record.steps[0] if record.steps else ()
    # One list for each statistic: a line each, where a mapping for each launch would fill the file with names.
    steps = {name: tuple(rounded(launch[name]) for launch in record.steps) for name in names}
    return {"steps": steps, **({"lost": rounded(record.lost)} if record.lost else {})}


def _series(*, slack: float, **fields: Any) -> Series:
    """A series with samples."""
    if not fields["samples"]:
        raise Misfit("expected a sample at least, found none", ".samples")
    return Series(min_tolerance=slack, rules=rules_of(fields["metric"]), **fields)


def _series_fields(series: Series) -> dict[str, Any]:
    slack = {"slack": rounded(series.min_tolerance)}
    if series.scale == "exact":
        return slack
    return {**slack, "samples": tuple(map(rounded, series.samples)), "value": rounded(series.value)}


def _interval(*, low: float, high: float, confidence: float) -> Interval:
    """An interval with ends in order."""
    if low > high:
        raise Misfit(f"its low end {low} lies above its high end {high}")
    return Interval(low=low, high=high, confidence=confidence)


_SHAPES = {
    BaselineFile: Shape(types={"schema": str, "checksum": str}, make=_file),
    BaselineRecord: Shape(
        types={
            "date": Day,
            "steps": Mapping[str, tuple[float, ...]],
            "counts": Counts,
            "counted": Provenance,
            "lost": Share,
        },
        optional=("recipe", "counts", "dirty", "counted", "turns", "over", "lost", "busy", "clock", "code", "typical"),
        make=_record,
        write=_record_fields,
    ),
    Provenance: Shape(types={"date": Day}, optional=("code",)),
    Environment: Shape(
        types={
            "device": Literal["cpu", "cuda"],
            **dict.fromkeys(("cores", "threads", "nodes", "world_size"), Positive),
            "recorded": Mapping[str, AnyText],
        },
        optional=("gpu_setup",),
    ),
    # Where only code of torch's led to a count there is no file, and of code without a file no source.
    CallSite: Shape(types=dict.fromkeys(("file", "function", "source"), AnyText), optional=("strategy", "through")),
    Counts: Shape(
        optional=("details_by_rank", "sites", "alike", "steps", "varying"),
        absent=("copy",),
        write=lambda counts: {
            "details": {metric: parts for metric, parts in counts.details.items() if parts},
            # Each operator and module would have one.
            "sites": {
                name: of_lines(sites) if name == "flops" else sites
                for name, sites in counts.sites.items()
                if name != "operators"
            },
        },
    ),
    Alike: Shape(types={"parameter": AnyText}, absent=("sites",)),
    # A later run computes within and own from its launches, and takes rules from the table of metrics.
    Series: Shape(
        types={"slack": float}, absent=("within", "own", "rules", "min_tolerance"), make=_series, write=_series_fields
    ),
    Interval: Shape(
        types={"confidence": Confidence},
        make=_interval,
        write=lambda interval: {"low": rounded(interval.low), "high": rounded(interval.high)},
    ),
}
BASELINE = FileKind(
    subject="baseline",
    version=3,  # step times are the means of all steps
    cure="restore it from version control, or delete it and measure again with --ddpperf-save",
    content=BaselineFile,
    shapes=_SHAPES,
)
