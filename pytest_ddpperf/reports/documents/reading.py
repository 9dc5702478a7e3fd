"""A results document that was written before, read again: typed or refused, and as the benchmarks of a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path

import msgspec

from pytest_ddpperf.baselines.document import read_as
from pytest_ddpperf.baselines.jsonfile import FileKind, checked, problem_text, read_text, uncollected
from pytest_ddpperf.errors import BaselineError
from pytest_ddpperf.metrics.scaling import EFFICIENCY, MEMORY, SPEEDUP
from pytest_ddpperf.metrics.table import METRICS, rules_of
from pytest_ddpperf.records.counts import COUNTS
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.health import Health
from pytest_ddpperf.records.launch import Launch, RankLaunch
from pytest_ddpperf.records.measurement import Measurement, Series
from pytest_ddpperf.records.results import BaselineRecord, Comparison, PairedRevision, Result, StoredBaseline
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.documents.parts import AgainstData
from pytest_ddpperf.reports.documents.results import ResultData, ResultsData
from pytest_ddpperf.reports.phrases import commit_text, environment_text

RESULTS = FileKind(subject="results", version=2, cure="write it again with --ddpperf-report=json:FILE")
_VERDICTS = {verdict.value: verdict for verdict in Verdict}
_PLACES = {
    name: place for place, name in enumerate((*COUNTS, *(row.name for row in METRICS), EFFICIENCY, SPEEDUP, MEMORY))
}


def read_results(file: Path) -> ResultsData:
    """Returns the results document in a file; ``-`` is standard input.

    Raises:
        BaselineError: there is no such file, or it is broken, or of another schema or version; the message names the
            file, the field and the cure.
    """
    text = read_text(file := Path("/dev/stdin") if file == Path("-") else file, RESULTS)
    if text is None:
        raise BaselineError(
            f"{RESULTS.name} {file}: there is no such file; pytest --ddpperf-report=json:{file} writes one"
        )
    try:
        document = read_as(ResultsData, text.encode())
    except msgspec.DecodeError as error:
        checked(text, file, RESULTS)
        raise RESULTS.error(file, problem_text(error)) from None
    if document.results and document.environment is None:
        raise RESULTS.error(file, "field environment: is null, and benchmarks were measured")
    return document


@uncollected
def results_of(document: ResultsData) -> tuple[Result, ...]:
    """The benchmarks, in the order measured, with all that a report on them says, and what a verdict on them needs.

    What the document does not have stays out: each rank's own figures, and the record of a baseline.
    """
    return tuple(_result(data, document) for data in document.results)


def facts_line(document: ResultsData, results: Sequence[Result]) -> str:
    """The code, the day, the machines and what benchmarks are compared with, in one line."""
    branch = f" of {document.branch}" if document.branch else ""
    commit = f"commit {commit_text(document.commit, dirty=document.dirty)}{branch}" if document.commit else ""
    machines = dict.fromkeys(environment_text(result.measurement.environment) for result in results)
    against = [origin for origin in dict.fromkeys(result.reference.origin for result in results) if origin]
    compared = f"compared with {'; '.join(against)}" if against else ""
    return "; ".join(filter(None, (commit, document.date, *machines, compared)))


def full_name(result: Result) -> str:
    """What tells a benchmark from all others of a project, on one machine: test, variant and number of ranks."""
    return f"{result.test} {result.name} w{result.measurement.world_size}"


def _result(data: ResultData, document: ResultsData) -> Result:
    # In the order of the tables of counts and metrics, those of hooks last.
    comparisons = tuple(
        _comparison(name, data)
        for name in sorted(data.metrics, key=lambda name: (_PLACES.get(name, len(_PLACES)), name))
    )
    environment = document.environments.get(data.environment_key, document.environment)
    if environment is None:
        raise BaselineError("field environment of the results: expected an object, for benchmarks were measured")
    launches = zip(data.step_times, chain(data.health, repeat(None)), strict=False)
    measurement = Measurement(
        **{each: getattr(data, each) for each in ("name", "strategy", "mode", "recipe", "over", "turns", "plan")},
        environment=replace(environment, world_size=data.world_size),
        launches=tuple(_launch(number, *each) for number, each in enumerate(launches)),
        series=tuple(comparison.series for comparison in comparisons),
        counts=data.counts,
    )
    paired, pair = (None if one is None else _revision(one, measurement) for one in (data.against, data.paired_with))
    return Result(
        test=data.test,
        measurement=measurement,
        comparisons=comparisons,
        verdict=_VERDICTS[data.verdict],
        reference=paired or StoredBaseline(record=None, origin=data.origin, pair=pair, unpaired=data.unpaired),
        findings=tuple(Finding("read_again", {"text": text}) for text in data.findings),
        seconds=data.seconds,
        failure=data.failure,
    )


def _comparison(name: str, result: ResultData) -> Comparison:
    metric = result.metrics[name]
    value = math.nan if metric.value is None else metric.value
    series = Series(
        **{each: getattr(metric, each) for each in ("unit", "scale", "gated")},
        better=metric.better or "lower",
        family=metric.family or "counted",
        metric=name,
        min_tolerance=metric.min_tolerance or 0.0,
        samples=(value,) if metric.scale == "exact" else _numbers(metric.samples),
        value=value,
        interval=metric.interval,
        rules=rules_of(name),
    )
    same = ("gated", "baseline", "change", "standard_error", "margin", "mde", "worse_in", "paired")
    of_look = ("bound", "interval_alpha", "bound_alpha")
    return Comparison(
        **{each: getattr(metric, each) for each in (*same, *of_look)},
        series=series,
        change_interval=metric.change_interval,
        df=math.inf if metric.df is None else metric.df,
        tolerance=metric.tolerance if metric.tolerance is not None else 0.0 if metric.scale == "exact" else math.inf,
        verdict=_VERDICTS[metric.verdict],
        note=Finding("read_again", {"text": metric.note}) if metric.note else None,
        base_samples=_numbers(metric.baseline_samples),
    )


def _numbers(samples: Iterable[float | None]) -> tuple[float, ...]:
    return tuple(math.nan if sample is None else sample for sample in samples)


def _launch(number: int, step_times: list[float], health: Health | None) -> Launch:
    """A launch as one rank, whose steps last as long as those of the slowest rank."""
    times = tuple(step_times)
    rank = RankLaunch(rank=0, step_times=times, memory={}, loss=None, samples_per_step=None, tokens_per_step=None)
    return Launch(round=number, ranks=(rank,), seconds=0.0, health=health)


def _revision(data: AgainstData, measured: Measurement) -> PairedRevision:
    """The other revision; its record tells only that it ran."""
    record = None
    if data.environment is not None:
        record = BaselineRecord(
            **{**measured.identity_fields, "environment": replace(data.environment, world_size=measured.world_size)},
            plan=measured.plan,
            series=(),
            commit=data.commit,
            date="",
            steps=(),
        )
    return PairedRevision(
        revision=data.revision,
        commit=data.commit,
        record=record,
        launches=data.launches,
        candidate_launches=len(measured.launches),
        python=data.python,
    )
