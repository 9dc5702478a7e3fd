"""Baseline records as JSON: versioned, checksummed, and checked field by field on reading."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, cast

from pytest_ddpperf.baselines.jsonfile import render, rounded
from pytest_ddpperf.baselines.reading import FileKind, parse
from pytest_ddpperf.baselines.typed import AnyText, Confidence, Day, Misfit, Positive, Shape, Share, read, shallow
from pytest_ddpperf.errors import BaselineError
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.measurement import Environment, Interval, Series
from pytest_ddpperf.records.results import BaselineRecord, Provenance


@dataclass(frozen=True, kw_only=True)
class BaselineFile:
    """All records of one test in one environment; their names tell them apart."""

    test: str  # pytest node id
    records: tuple[BaselineRecord, ...]


def encode(content: BaselineFile, file: Path) -> str:
    """The text of a baseline file, times with nine digits; BaselineError where it could not be read again (a NaN)."""
    records = [_record_data(record) for record in content.records]
    # In the form in which it is read: lists for tuples.
    document = json.loads(json.dumps({"schema": BASELINE.schema, "test": content.test, "records": records}))
    document["checksum"] = _checksum(document)
    try:
        read(BaselineFile, document, _SHAPES)
    except Misfit as misfit:
        raise BaselineError(
            f"{BASELINE.name} {file} was not written: {misfit}; mend the benchmark, then save again"
        ) from None
    return render(document)


def decode(text: str, file: Path) -> BaselineFile:
    """The content of a baseline file; BaselineError where it is broken or was edited by hand."""
    content, data = parse(text, file, BASELINE)
    if data["checksum"] != _checksum(data):
        raise BASELINE.error(file, "field checksum: does not match the content: the file was edited by hand")
    return cast("BaselineFile", content)


def environment_data(environment: Environment) -> dict[str, Any]:
    """An environment as JSON data."""
    return asdict(environment)


def counts_data(counts: Counts | None) -> dict[str, Any] | None:
    """Counts as JSON data; null for none. Numbers keep all their digits: they are compared exactly."""
    if counts is None:
        return None
    by_rank = {
        metric: {part: list(ranks) for part, ranks in parts.items()} for metric, parts in counts.details_by_rank.items()
    }
    return {
        "totals": dict(counts.totals),
        "details": {metric: dict(parts) for metric, parts in counts.details.items() if parts},
        "unstable": dict(counts.unstable),
        "by_rank": {metric: list(ranks) for metric, ranks in counts.by_rank.items()},
        # Left out where there are none, as in files written before they were told.
        **({"details_by_rank": by_rank} if by_rank else {}),
    }


def interval_data(interval: Interval | None) -> dict[str, float] | None:
    """An interval as JSON data; null for none."""
    if interval is None:
        return None
    return {"low": rounded(interval.low), "high": rounded(interval.high), "confidence": interval.confidence}


def _record_data(record: BaselineRecord) -> dict[str, Any]:
    data = {
        **shallow(record, _SHAPES),
        "plan": asdict(record.plan),
        "environment": environment_data(record.environment),
        "series": [_series_data(series) for series in record.series],
        # One list for each statistic: a line each, where a mapping for each launch would fill the file with names.
        "steps": {name: [rounded(launch[name]) for launch in record.steps] for name in (*record.steps, {})[0]},
        "counts": counts_data(record.counts),
        "counted": None if record.counted is None else asdict(record.counted),
        "lost": rounded(record.lost),
    }
    # What is empty is left out, so that files written before it was known stay as they are.
    return {name: value for name, value in data.items() if value or name not in _SHAPES[BaselineRecord].optional}


def _series_data(series: Series) -> dict[str, Any]:
    exact = series.scale == "exact"
    return {
        **shallow(series, _SHAPES),
        "slack": rounded(series.min_tolerance),
        "samples": [sample if exact else rounded(sample) for sample in series.samples],
        "value": series.value if exact else rounded(series.value),
        "interval": interval_data(series.interval),
    }


def _checksum(document: Mapping[str, Any]) -> str:
    """Stands for the content, not its layout: a formatter may run over the file, an editor may not."""
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


def _series(**fields: Any) -> Series:
    """A series with samples."""
    if not fields["samples"]:
        raise Misfit("expected a sample at least, found none", ".samples")
    return Series(min_tolerance=fields.pop("slack"), **fields)


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
        optional=("recipe", "counts", "dirty", "counted", "turns", "lost"),
        make=_record,
    ),
    Provenance: Shape(types={"date": Day}),
    Environment: Shape(
        types={
            "device": Literal["cpu", "cuda"],
            **dict.fromkeys(("cores", "threads", "nodes", "world_size"), Positive),
            "recorded": Mapping[str, AnyText],
        }
    ),
    Counts: Shape(optional=("details_by_rank",)),
    # The launches of a later run tell it of both that are absent.
    Series: Shape(types={"slack": float}, absent=("within", "own", "rules", "min_tolerance"), make=_series),
    Interval: Shape(types={"confidence": Confidence}, make=_interval),
}
BASELINE = FileKind(
    name="baseline file",
    cure="restore it from version control, or delete it and measure again with --ddpperf-save",
    family="pytest-ddpperf/baseline/",
    version=1,
    content=BaselineFile,
    shapes=_SHAPES,
)
