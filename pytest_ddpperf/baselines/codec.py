"""The format of baseline files: the JSON of each record, for writing and reading."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from pytest_ddpperf.baselines.document import (
    Confidence,
    Date,
    Document,
    Natural,
    Positive,
    Share,
    Text,
    about,
    finite,
    read_as,
    read_checked,
)
from pytest_ddpperf.baselines.jsonfile import FileKind, checked, problem_text, render, rounded
from pytest_ddpperf.errors import BaselineError
from pytest_ddpperf.metrics.table import rules_of
from pytest_ddpperf.records.counts import Alike, Counts
from pytest_ddpperf.records.measurement import Environment, Interval, Plan, Series
from pytest_ddpperf.records.results import BaselineRecord, Provenance
from pytest_ddpperf.records.sites import CallSite, of_lines

BASELINE = FileKind(
    subject="baseline",
    version=4,  # without statistics of the steps of each launch
    cure="restore it from version control, or delete it and measure again with --ddpperf-save",
)


@dataclass(frozen=True, kw_only=True)
class BaselineFile:
    """All records of one test in one environment, with distinct names."""

    test: str  # pytest node id
    records: tuple[BaselineRecord, ...]


class OfBaseline(Document):
    """An object in a baseline file; its numbers keep all digits, because counts are compared exactly."""

    number = staticmethod(finite)


class StoredProvenance(OfBaseline, record=Provenance, sparse=("code",)):
    """The date and the code of counts."""

    date: Date


class StoredEnvironment(OfBaseline, record=Environment, sparse=("gpu_setup",)):
    """The environment of a record."""

    device: Literal["cpu", "cuda"]
    device_count: Natural
    cores: Natural
    threads: Natural
    nodes: Positive
    world_size: Positive


class StoredPlan(OfBaseline, record=Plan):
    """The steps of a launch."""

    warmup: Natural
    steps: Natural


class StoredSite(OfBaseline, record=CallSite, sparse=("strategy", "through")):
    """A line of code that a part of a count comes from."""


class StoredAlike(OfBaseline, record=Alike, without=("sites",)):
    """The state that ranks have in common."""


class StoredCounts(
    OfBaseline,
    record=Counts,
    without=("copy",),
    sparse=("details_by_rank", "sites", "sites_by_rank", "alike", "steps", "varying"),
):
    """Counts of a step, with operators and FLOPs by line, whichever operator or module it is."""

    details: Mapping[str, Mapping[str, float]] = about(
        source=lambda counts: {metric: parts for metric, parts in counts.details.items() if parts}
    )
    sites: Mapping[str, tuple[CallSite, ...]] = about(
        source=lambda counts: {
            name: of_lines(sites) if name in {"flops", "operators"} else sites for name, sites in counts.sites.items()
        }
    )


class StoredInterval(OfBaseline, record=Interval):
    """A confidence interval, to nine digits."""

    low: float = about(lambda interval: rounded(interval.low))
    high: float = about(lambda interval: rounded(interval.high))
    confidence: Confidence

    def checked(self) -> None:
        """Raises a ValueError unless the ends are in order."""
        if self.low > self.high:
            raise ValueError(f"its low end {self.low} lies above its high end {self.high}")


class StoredSeries(OfBaseline, record=Series, without=("within", "own", "rules", "min_tolerance")):
    """A metric. A later run computes within and own from its launches, and takes rules from the table of metrics."""

    slack: float = about(lambda series: rounded(series.min_tolerance))
    samples: tuple[float, ...] = about(
        source=lambda series: series.samples if series.scale == "exact" else tuple(map(rounded, series.samples))
    )
    value: float = about(lambda series: series.value if series.scale == "exact" else rounded(series.value))

    def checked(self) -> None:
        """Raises a ValueError if it has no sample."""
        if not self.samples:
            raise ValueError("expected a sample at least, found none")

    @classmethod
    def made(cls, **values: Any) -> Series:
        """Builds a series of these fields, with the rules of its metric."""
        return Series(min_tolerance=values.pop("slack"), rules=rules_of(values["metric"]), **values)


_OPTIONAL = ("recipe", "counts", "dirty", "counted", "turns", "over", "lost", "busy", "clock", "code", "typical")


class StoredRecord(OfBaseline, record=BaselineRecord, sparse=_OPTIONAL):
    """A record of one benchmark."""

    name: Text
    date: Date
    lost: Share | None = about(lambda record: rounded(record.lost) or None)

    @classmethod
    def made(cls, **values: Any) -> BaselineRecord:
        """Builds a record of these fields."""
        return BaselineRecord(**values | {"lost": values["lost"] or 0.0})


class StoredFile(OfBaseline, record=BaselineFile):
    """A baseline file; its records have distinct names."""

    test: Text
    records: tuple[BaselineRecord, ...]
    schema: str = about(lambda _: BASELINE.schema)
    checksum: str = about(lambda _: "")

    def checked(self) -> None:
        """Raises a ValueError if two records have one name."""
        names = [record.name for record in self.records]
        twice = next((i for i, name in enumerate(names) if name in names[:i]), None)
        if twice is not None:
            raise ValueError(f"field records[{twice}]: a second record is named {names[twice]!r}")


def encode(content: BaselineFile, file: Path) -> str:
    """Returns the text of a baseline file, times with nine digits; BaselineError if it would be unreadable (a NaN)."""
    document = json.loads(json.dumps(StoredFile.filled_from(content)))
    document["checksum"] = _checksum(document)
    try:
        read_as(StoredFile, document)
    except msgspec.DecodeError as error:
        raise BaselineError(
            f"{BASELINE.name} {file} was not written: {problem_text(error)}; mend the benchmark, then save again"
        ) from None
    return render(document)


def decode(text: str, file: Path) -> BaselineFile:
    """Returns the content of a baseline file; BaselineError if it is broken or was edited by hand."""
    data = checked(text, file, BASELINE)
    content: BaselineFile = read_checked(StoredFile, _upgraded(data), file, BASELINE)
    if data["checksum"] != _checksum(data):
        raise BASELINE.error(file, "field checksum: does not match the content: the file was edited by hand")
    return content


def _upgraded(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Converts data of older files; before version 3 a step time is the mean of typical steps only."""
    if data["schema"] == BASELINE.schema or not isinstance(data.get("records"), list):
        return data
    before_3 = not str(data["schema"]).endswith("/3")

    def without(found: Any, *gone: str) -> Any:
        return {name: value for name, value in found.items() if name not in gone} if isinstance(found, dict) else found

    def upgraded(record: Any) -> Any:
        kept, series = without(record, "runs", "steps"), record.get("series") if isinstance(record, dict) else None
        if not isinstance(series, list):
            return kept
        others = [each for each in series if not isinstance(each, dict) or each.get("metric") != "step_time_tail"]
        typical = {"typical": True} if before_3 and record.get("steps") else {}
        return {**kept, "series": [without(each, "control") for each in others], **typical}

    return {**data, "records": [upgraded(record) for record in data["records"]]}


def _checksum(document: Mapping[str, Any]) -> str:
    """Returns a hash of the content, not of its layout: a formatter may change the file, an editor may not."""
    content = {name: value for name, value in document.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
