"""Writes the results document of a run, and reads a run from such a document."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, fields, replace
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from pytest_ddpperf.baselines.codec import environment_json
from pytest_ddpperf.baselines.fingerprint import environment_key
from pytest_ddpperf.baselines.jsonfile import UNUSUAL, FileKind, checked, problem_text, read_text
from pytest_ddpperf.errors import BaselineError
from pytest_ddpperf.instruments.clock import uncollected
from pytest_ddpperf.judge.calibration import Calibrated
from pytest_ddpperf.metrics.launch_figures import gpus_of
from pytest_ddpperf.metrics.table import rules_of
from pytest_ddpperf.records import results
from pytest_ddpperf.records.counts import Counts, count_row
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import Health, Launch, RankLaunch
from pytest_ddpperf.records.measurement import Interval, Measurement, Series
from pytest_ddpperf.records.verbs import LOSS, Convergence
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.diagnosis import in_words
from pytest_ddpperf.reports.documents import entries
from pytest_ddpperf.reports.files import document_text
from pytest_ddpperf.reports.findings import finding_text
from pytest_ddpperf.reports.phrases import findings

if TYPE_CHECKING:
    from pytest_ddpperf.against.git import Checkout
    from pytest_ddpperf.reports.outputs import Outputs

_Made = TypeVar("_Made")
RESULTS = FileKind(subject="results", version=3, cure="write it again with --ddpperf-report=json:FILE")
_UNPLACED = ("operators", "flops", "collective_send_bytes")  # counts of which others have the lines
_UNKNOWN = {"commit": None, "branch": None, "dirty": False, "commit_date": None}  # code outside of a repository
_OF_COUNTS = {**dict.fromkeys(("better", "family", "min_tolerance", "tolerance"), None), "samples": ()}  # say nothing


class _Read(entries.ResultsFile, frozen=True):
    convergences: tuple[dict[str, Any], ...]  # type: ignore[assignment]  # null is a number that is not finite


@uncollected()
def run_text(made: Outputs, code: Checkout | None, *, date: str | None = None) -> str:
    """Returns the results document of a run as JSON; ``code``: the measured checkout; ``date``: when the run ended."""
    benchmarks: list[results.Result | Calibrated] = [*made.results, *made.calibrated]
    environments = [one.measurement.environment for one in benchmarks]
    verdicts = Counter(result.verdict for result in made.results)
    keys = {id(environment): environment_key(environment) for environment in environments}
    document: dict[str, Any] = {
        "schema": RESULTS.schema,
        # Benchmarks of one run differ in their number of ranks: the largest group stands for the run.
        "environment": max(environments, key=lambda environment: environment.world_size, default=None),
        "environments": {keys[id(environment)]: environment for environment in reversed(environments)},
        "date": date,
        **(_UNKNOWN if code is None else asdict(code)),
        "overall": {
            "verdicts": {verdict: verdicts[verdict] for verdict in Verdict},
            "common_change": made.common_change,
        },
        "interrupted": made.interrupted,
        "unmeasured": made.unmeasured,
        "results": [_entry(result, keys[id(result.measurement.environment)]) for result in made.results],
        "batch_sizes": made.searches,
        "calibration": [_calibrated(one, keys[id(one.measurement.environment)]) for one in made.calibrated],
        "convergences": list(map(_convergence, made.convergences)),
        "advice": [_struct(entries.StrategyAdviceEntry, one) for one in made.advice],
        "predictions": [_made(entries.PredictionEntry, each, each.prediction) for each in made.predictions],
    }
    return document_text(document)


def _struct(kind: type[Any], record: Any) -> Any:
    """Converts a record, or the value of a record's field, to an entry of type ``kind`` of the results document."""
    return msgspec.convert(record, kind, from_attributes=True)


def _made(kind: type[_Made], *sources: Any, **known: Any) -> _Made:
    """Makes an entry or a record; takes each field from ``known``, or else from the first source that has the field."""
    every = getattr(kind, "__struct_fields__", None) or [each.name for each in fields(kind)]  # type: ignore[arg-type]
    names = [name for name in every if name not in known]
    found = {name: getattr(each, name) for each in reversed(sources) for name in names if hasattr(each, name)}
    return kind(**found, **known)


def _entry(result: results.Result, key: str) -> Any:
    measured, known = result.measurement, result.baseline
    return _made(
        entries.ResultEntry,
        *(result, measured, result.step),
        environment_key=key,
        health=_health(measured),
        metrics={each.series.metric: _metric(each) for each in result.comparisons},
        launches=len(measured.launches),
        step_times=tuple(launch.step_times for launch in measured.launches),
        time=result.spent,
        against=None if result.paired is None else _against(result.paired),
        paired_with=_against(result.pair) if result.pair and not result.paired else None,
        unpaired=getattr(result.reference, "unpaired", ""),
        baseline=known and _made(entries.BaselineEntry, known, environment_key=environment_key(known.environment)),
        origin=result.reference.origin,
        counts=None if measured.counts is None else _counts(measured.counts),
        diagnosis=None if result.step.diagnosis is None else in_words(result.step.diagnosis),
        findings=findings(result),
    )


def _health(measured: Measurement) -> tuple[Health | None, ...]:
    return tuple(launch.health and replace(launch.health, gpus=gpus_of(launch)) for launch in measured.launches)


def _metric(judged: results.Comparison) -> Any:
    notes = filter(None, map(finding_text, (judged.note, judged.difference)))
    entry = _made(entries.MetricEntry, judged, judged.series, note="; ".join(notes))
    values = msgspec.structs.asdict(entry) | (_OF_COUNTS if judged.series.scale == "exact" else {})
    endless = {name: None for name, value in values.items() if isinstance(value, float) and not math.isfinite(value)}
    return entries.MetricEntry(**values | endless)


def _counts(counts: Counts) -> Any:
    details = {metric: parts for metric, parts in counts.details.items() if parts}
    sites = {metric: sites for metric, sites in counts.sites.items() if metric not in _UNPLACED}
    return _struct(entries.CountsEntry, replace(counts, details=details, sites=sites))


def _against(paired: results.PairedRevision) -> Any:
    return _made(
        entries.AgainstEntry,
        paired,
        modules={name: {"here": here, "there": there} for name, (here, there) in paired.modules.items()},
        environment=None if paired.record is None else paired.record.environment,
        packages={name: {"there": there, "here": here} for name, (there, here) in paired.packages.items()},
    )


def _calibrated(found: Calibrated, key: str) -> Any:
    rates = {name: _struct(entries.RateEntry, getattr(found, name)) for name in ("alarms", "green")}
    measured = found.measurement
    return _made(entries.CalibratedEntry, found, measured, environment_key=key, health=_health(measured), **rates)


def _convergence(found: Convergence) -> dict[str, Any]:
    kept = [{**msgspec.to_builtins(row), "agreement": row.agreement} for row in found.kept]
    return {**msgspec.to_builtins(found), "launches": len(found.strategies[0].curves), "kept": kept}


def read_run(file: Path) -> entries.Run:
    """Reads the run of a results document; ``-`` is standard input.

    Raises:
        BaselineError: the file is missing or broken, or has another schema; the message names file, field and cure.
    """
    text = read_text(file := Path("/dev/stdin") if file == Path("-") else file, RESULTS)
    if text is None:
        raise BaselineError(f"{RESULTS.name} {file} does not exist; pytest --ddpperf-report=json:{file} writes it")
    if UNUSUAL.search(text):
        text = json.dumps(checked(text, file, RESULTS))  # with null in place of NaN and infinity
    try:
        return run_of(text)
    except msgspec.DecodeError as error:
        checked(text, file, RESULTS)
        raise RESULTS.error(file, problem_text(error)) from None


@uncollected()
def run_of(text: str) -> entries.Run:
    """Returns the run that the text of a results document describes; facts that the document lacks stay empty."""
    read = msgspec.json.decode(text, type=_Read)
    same = {name: getattr(read, name) for name in entries.RunFacts.__struct_fields__}
    convergences = msgspec.convert(_with_nan(read.convergences), tuple[Convergence, ...])
    for i, found in enumerate(convergences):
        # By strategy, the curves' lengths and the quantities.
        strategies = [([len(each.steps) for each in one.curves], one.finals.keys()) for one in found.strategies]
        if not all(steps and all(steps) and {LOSS, found.metric} <= finals for steps, finals in strategies):
            problem = f"expected steps, and last values of {LOSS} and {found.metric}"
            raise msgspec.ValidationError(f"{problem} - at `$.convergences[{i}].strategies`")
    return entries.Run(
        **same | {"convergences": convergences},
        results=tuple(_result(number, data, read) for number, data in enumerate(read.results)),
        common_change=read.overall.common_change,
    )


def _with_nan(data: Any, *, number: bool = False) -> Any:
    """Replaces null with NaN in those fields of JSON data that contain numbers, such as ``samples``."""
    if isinstance(data, dict):
        of_numbers = {"value", "values", "samples"}
        return {name: _with_nan(value, number=number or name in of_numbers) for name, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_with_nan(value, number=number) for value in data]
    return math.nan if data is None and number else data


def _result(number: int, data: entries.ResultEntry, read: _Read) -> results.Result:
    try:
        _ = data.diagnosis and in_words(data.diagnosis)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:  # advice of another version
        problem = f"has a code or facts that this version does not know ({error})"
        raise msgspec.ValidationError(f"{problem} - at `$.results[{number}].diagnosis`") from None
    environment = read.environments.get(data.environment_key, read.environment)
    if environment is None:
        raise msgspec.ValidationError("is null, although the file has benchmarks - at `$.environment`")
    comparisons = tuple(_comparison(name, metric) for name, metric in data.metrics.items())
    launches = zip(data.step_times, chain(data.health, repeat(None)), strict=False)
    measured = _made(
        Measurement,
        data,
        environment=replace(environment, world_size=data.world_size),
        launches=tuple(_launch(number, *each, data.effective_batch_size) for number, each in enumerate(launches)),
        series=tuple(comparison.series for comparison in comparisons),
        counts=msgspec.convert(data.counts, Counts | None, from_attributes=True),
        findings=(),
    )
    environment_json(measured.environment)  # which names a fact that cannot be
    paired, pair = (None if one is None else _revision(one, measured) for one in (data.against, data.paired_with))
    stored = data.baseline
    return _made(
        results.Result,
        data,
        measurement=measured,
        comparisons=comparisons,
        reference=paired
        or results.StoredBaseline(
            record=None
            if stored is None
            else _record(measured, date=stored.date, commit=stored.commit, dirty=stored.dirty, counted=stored.counted),
            origin=data.origin,
            pair=pair,
            unpaired=data.unpaired,
        ),
        findings=tuple(Finding("read_again", {"text": text}) for text in data.findings),
        spent=data.time,
        step=_made(results.StepAnalysis, data),
    )


def _comparison(name: str, metric: entries.MetricEntry) -> results.Comparison:
    value, exact = math.nan if metric.value is None else metric.value, metric.scale == "exact"
    series = Series(
        metric=name,
        unit=metric.unit,
        better=metric.better or "lower",
        family=metric.family or "counted",
        scale=metric.scale,
        gated=count_row(name).gated if exact else metric.gated,  # counts: whatever they were compared with
        min_tolerance=metric.min_tolerance or 0.0,
        samples=(value,) if exact else _numbers(metric.samples),
        value=value,
        interval=_interval(metric.interval),
        rules=rules_of(name),
    )
    return _made(
        results.Comparison,
        metric,
        series=series,
        change_interval=_interval(metric.change_interval),
        df=math.inf if metric.df is None else metric.df,
        tolerance=metric.tolerance if metric.tolerance is not None else 0.0 if exact else math.inf,
        note=Finding("read_again", {"text": metric.note}) if metric.note else None,
        base_samples=_numbers(metric.base_samples),
    )


def _numbers(samples: Iterable[float | None]) -> tuple[float, ...]:
    return tuple(math.nan if sample is None else sample for sample in samples)


def _interval(read: entries.IntervalEntry | None) -> Interval | None:
    if read is None:
        return None
    low, high = -math.inf if read.low is None else read.low, math.inf if read.high is None else read.high
    return Interval(low=low, high=high, confidence=read.confidence)


def _launch(number: int, times: tuple[float, ...], health: Health | None, samples: float | None) -> Launch:
    """Returns a launch with one rank that represents all: the document has only the slowest rank's step times."""
    rank = RankLaunch(rank=0, step_times=times, memory={}, loss=None, samples_per_step=samples, tokens_per_step=None)
    return Launch(round=number, ranks=(rank,), seconds=0.0, health=health)


def _record(measured: Measurement, **known: Any) -> results.BaselineRecord:
    """Returns a baseline's record with the benchmark's identity and the facts in ``known``, but without metrics."""
    return results.BaselineRecord(**measured.identity_fields | {"plan": measured.plan, "series": ()} | known)


def _revision(data: entries.AgainstEntry, measured: Measurement) -> results.PairedRevision:
    record, environment = None, data.environment
    if environment is not None:
        environment = replace(environment, world_size=measured.world_size)
        record = _record(measured, environment=environment, commit=data.commit, date="")
    return results.PairedRevision(
        revision=data.revision,
        commit=data.commit,
        record=record,
        launches=data.launches,
        candidate_launches=len(measured.launches),
        python=data.python,
    )
