"""Baseline records as JSON: versioned, checksummed, and checked field by field on reading."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from pytest_ddpperf.baselines.fields import Field, parse, require_schema
from pytest_ddpperf.baselines.jsonfile import render, rounded
from pytest_ddpperf.errors import BaselineError
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.measurement import Better, Environment, Family, Interval, Mode, Plan, Scale, Series
from pytest_ddpperf.records.results import BaselineRecord, Provenance

_FAMILY = "pytest-ddpperf/baseline/"
_VERSION = 1
SCHEMA = f"{_FAMILY}{_VERSION}"
_OPTIONAL = ("recipe", "counts", "dirty", "counted", "turns", "lost")
_NOT_STORED = ("within", "own", "rules")  # of a Series: the launches of a later run tell it of both


@dataclass(frozen=True)
class BaselineFile:
    """All records of one test in one environment; their names tell them apart."""

    test: str  # pytest node id
    records: tuple[BaselineRecord, ...]


def encode(content: BaselineFile, file: Path) -> str:
    """The text of a baseline file. Numbers keep nine significant digits.

    Raises:
        BaselineError: a number is NaN or infinite; the message names ``file`` and the field.
    """
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "test": content.test,
        "records": [_record_data(record) for record in content.records],
    }
    _require_finite(Field(file, "", document))
    return render({**document, "checksum": _checksum(document)})


def decode(text: str, file: Path) -> BaselineFile:
    """The content of a baseline file.

    Args:
        text: the file's text.
        file: its path, for the errors.

    Raises:
        BaselineError: the file is cut off, garbled, of another schema, holds a wrong value, or was edited by hand.
    """
    top = parse(text, file)
    require_schema(top, _FAMILY, _VERSION)
    fields = top.fields("schema", "test", "records", "checksum")
    content = BaselineFile(fields["test"].text(), tuple(map(_record, fields["records"].items())))
    names = [record.name for record in content.records]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise fields["records"].items()[i].error(f"a second record is named {name!r}")
    if fields["checksum"].text() != _checksum(top.value):
        raise fields["checksum"].error("does not match the content: the file was edited by hand")
    return content


def environment_data(environment: Environment) -> dict[str, Any]:
    """An environment as JSON data."""
    return {**_shallow(environment), "recorded": dict(environment.recorded)}


def counts_data(counts: Counts | None) -> dict[str, Any] | None:
    """Counts as JSON data; null for none. Numbers keep all their digits: they are compared exactly."""
    if counts is None:
        return None
    by_rank = {
        metric: {part: list(ranks) for part, ranks in sorted(parts.items())}
        for metric, parts in counts.details_by_rank.items()
    }
    return {
        "totals": dict(counts.totals),
        "details": {metric: dict(sorted(parts.items())) for metric, parts in counts.details.items() if parts},
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
    statistics = record.steps[0] if record.steps else ()
    # Left out where there are none, so that files written before they were known stay as they are.
    recipe = {"recipe": dict(record.recipe)} if record.recipe else {}
    counts = {"counts": counts_data(record.counts)} if record.counts is not None else {}
    return {
        **{name: value for name, value in _shallow(record).items() if name not in _OPTIONAL},
        **recipe,
        **counts,
        **{name: True for name in ("dirty", "turns") if getattr(record, name)},
        **({"lost": rounded(record.lost)} if record.lost else {}),
        **({"counted": _shallow(record.counted)} if record.counted is not None else {}),
        "plan": _shallow(record.plan),
        "environment": environment_data(record.environment),
        "series": [_series_data(series) for series in record.series],
        # One list for each statistic: a line each, where a mapping for each launch would fill the file with names.
        "steps": {name: [rounded(launch[name]) for launch in record.steps] for name in statistics},
    }


def _series_data(series: Series) -> dict[str, Any]:
    return {
        **{name: value for name, value in _shallow(series).items() if name not in _NOT_STORED},
        "slack": rounded(series.slack),
        "samples": [sample if series.scale == "exact" else rounded(sample) for sample in series.samples],
        "value": series.value if series.scale == "exact" else rounded(series.value),
        "interval": interval_data(series.interval),
    }


def _shallow(record: Any) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}


def _require_finite(field: Field) -> None:
    if isinstance(field.value, dict):
        inner: Iterable[Field] = field.mapping().values()
    else:
        inner = field.items() if isinstance(field.value, list) else ()
    for item in inner:
        _require_finite(item)
    if isinstance(field.value, float) and not math.isfinite(field.value):
        raise BaselineError(
            f"baseline file {field.file} was not written: field {field.path} is {field.value}, and only finite "
            "numbers can be compared with; mend the benchmark, then save again"
        )


def _checksum(document: dict[str, Any]) -> str:
    """Stands for the content, not its layout: a formatter may run over the file, an editor may not."""
    content = {name: value for name, value in document.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _record(field: Field) -> BaselineRecord:
    names = tuple(f.name for f in dataclasses.fields(BaselineRecord))
    fields = field.fields(*names, optional=_OPTIONAL)
    return BaselineRecord(
        name=fields["name"].text(),
        strategy=fields["strategy"].text(),
        mode=None if fields["mode"].value is None else cast("Mode", fields["mode"].choice(get_args(Mode))),
        plan=_plan(fields["plan"]),
        environment=_environment(fields["environment"]),
        series=tuple(map(_series, fields["series"].items())),
        commit=None if fields["commit"].value is None else fields["commit"].text(),
        date=fields["date"].day(),
        steps=_steps(fields["steps"]),
        recipe={name: word.text() for name, word in fields["recipe"].mapping().items()} if "recipe" in fields else {},
        counts=_counts(fields["counts"]) if "counts" in fields else None,
        dirty="dirty" in fields and fields["dirty"].switch(),
        counted=_provenance(fields["counted"]) if "counted" in fields else None,
        turns="turns" in fields and fields["turns"].switch(),
        lost=_share(fields["lost"]) if "lost" in fields else 0.0,
    )


def _provenance(field: Field) -> Provenance:
    fields = field.fields("date", "commit", "dirty")
    commit = None if fields["commit"].value is None else fields["commit"].text()
    return Provenance(date=fields["date"].day(), commit=commit, dirty=fields["dirty"].switch())


def _counts(field: Field) -> Counts:
    fields = field.fields("totals", "details", "unstable", "by_rank", "details_by_rank", optional=("details_by_rank",))
    unequal = fields["details_by_rank"].mapping() if "details_by_rank" in fields else {}
    return Counts(
        totals={name: item.number() for name, item in fields["totals"].mapping().items()},
        details={
            name: {part: item.number() for part, item in parts.mapping().items()}
            for name, parts in fields["details"].mapping().items()
        },
        unstable={name: item.text() for name, item in fields["unstable"].mapping().items()},
        by_rank=_by_rank(fields["by_rank"]),
        details_by_rank={name: _by_rank(parts) for name, parts in unequal.items()},
    )


def _by_rank(field: Field) -> dict[str, tuple[float, ...]]:
    return {name: tuple(item.number() for item in ranks.items()) for name, ranks in field.mapping().items()}


def _plan(field: Field) -> Plan:
    fields = field.fields("warmup", "steps")
    return Plan(warmup=fields["warmup"].whole(), steps=fields["steps"].whole())


def _steps(field: Field) -> tuple[dict[str, float], ...]:
    columns = {name: [item.number() for item in column.items()] for name, column in field.mapping().items()}
    lengths = {len(column) for column in columns.values()}
    if len(lengths) > 1:
        raise field.error(f"expected lists of one length, found {', '.join(map(str, sorted(lengths)))}")
    return tuple(dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))


def _share(field: Field) -> float:
    if not 0 <= field.number() <= 1:
        raise field.error(f"expected a number from 0 to 1, found {field.value}")
    return field.number()


def _series(field: Field) -> Series:
    names = tuple(f.name for f in dataclasses.fields(Series) if f.name not in _NOT_STORED)
    fields = field.fields(*names)
    samples = tuple(item.number() for item in fields["samples"].items())
    if not samples:
        raise fields["samples"].error("holds no sample")
    return Series(
        metric=fields["metric"].text(),
        unit=fields["unit"].text(),
        better=cast("Better", fields["better"].choice(get_args(Better))),
        family=cast("Family", fields["family"].choice(get_args(Family))),
        scale=cast("Scale", fields["scale"].choice(get_args(Scale))),
        gated=fields["gated"].switch(),
        slack=fields["slack"].number(),
        samples=samples,
        value=fields["value"].number(),
        interval=None if fields["interval"].value is None else _interval(fields["interval"]),
    )


def _interval(field: Field) -> Interval:
    fields = field.fields("low", "high", "confidence")
    interval = Interval(**{name: fields[name].number() for name in ("low", "high", "confidence")})
    if interval.low > interval.high:
        raise field.error(f"its low end {interval.low} lies above its high end {interval.high}")
    if not 0 < interval.confidence < 1:
        raise fields["confidence"].error(f"expected a number between 0 and 1, found {interval.confidence}")
    return interval


def _environment(field: Field) -> Environment:
    fields = field.fields(*(f.name for f in dataclasses.fields(Environment)))
    return Environment(
        device=fields["device"].choice(("cpu", "cuda")),
        device_model=fields["device_model"].text(),
        device_count=fields["device_count"].whole(),
        cpu_model=fields["cpu_model"].text(),
        cores=fields["cores"].whole(least=1),
        threads=fields["threads"].whole(least=1),
        nodes=fields["nodes"].whole(least=1),
        backend=fields["backend"].text(),
        world_size=fields["world_size"].whole(least=1),
        torch=fields["torch"].text(),
        cuda=None if fields["cuda"].value is None else fields["cuda"].text(),
        recorded={name: item.text(least=0) for name, item in fields["recorded"].mapping().items()},
    )
