"""All results of a run as one JSON document, which ``documents.results`` declares."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from pytest_ddpperf.against.git import Checkout
from pytest_ddpperf.baselines.calibration import Calibrated
from pytest_ddpperf.baselines.codec import counts_data, environment_data
from pytest_ddpperf.baselines.fingerprint import environment_key
from pytest_ddpperf.baselines.jsonfile import render, replace_file, rounded
from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.metrics.communication import still_sent
from pytest_ddpperf.metrics.health import gpus_of
from pytest_ddpperf.metrics.memory import memory_by_rank
from pytest_ddpperf.metrics.phases import memory_of_phases, sections_of
from pytest_ddpperf.records.batch_size import Search
from pytest_ddpperf.records.communication import CommunicationProfile
from pytest_ddpperf.records.health import CpuHealth, GpuHealth
from pytest_ddpperf.records.launch import Launch
from pytest_ddpperf.records.measurement import Interval, Spread
from pytest_ddpperf.records.results import BaselineRecord, Comparison, PairedRevision, Result
from pytest_ddpperf.reports.findings import finding_text, words_of_note
from pytest_ddpperf.reports.phrases import findings
from pytest_ddpperf.stats.rates import Rate

if TYPE_CHECKING:  # types alone, and they need msgspec, which only making the schema does
    from pytest_ddpperf.reports.documents.benchmark import (
        AgainstData,
        BaselineData,
        MetricData,
        ProvenanceData,
        ResultData,
    )
    from pytest_ddpperf.reports.documents.kinds import IntervalData
    from pytest_ddpperf.reports.documents.machine import CpuData, EnvironmentData, GpuData, HealthData
    from pytest_ddpperf.reports.documents.results import (
        BatchSizeData,
        CalibratedData,
        RateData,
        RecommendedData,
        ResultsData,
        SpreadData,
    )
    from pytest_ddpperf.reports.documents.step import CountsData, MemoryUseData, ProfileData

SCHEMA: Literal["pytest-ddpperf/results/1"] = "pytest-ddpperf/results/1"
SCHEMA_FILE = Path(__file__).with_name("results.schema.json")


def results_document(
    results: Sequence[Result],
    code: Checkout | None,
    searches: Sequence[Search] = (),
    calibrated: Sequence[Calibrated] = (),
) -> dict[str, Any]:
    """The results, searches and calibrated benchmarks of a run, each in the order made, and the code that was run."""
    # Benchmarks of one run differ in their number of ranks: the largest group stands for the run.
    measured = [*(result.measurement for result in results), *(benchmark.measurement for benchmark in calibrated)]
    largest = max(measured, key=lambda measurement: measurement.world_size, default=None)
    document: ResultsData = {
        "schema": SCHEMA,
        "environment": None if largest is None else cast("EnvironmentData", environment_data(largest.environment)),
        "commit": None if code is None else code.commit,
        "dirty": code is not None and code.dirty,
        "results": [_result_data(result) for result in results],
        "batch_sizes": [_search_data(search) for search in searches],
        "calibration": [_calibrated_data(benchmark) for benchmark in calibrated],
    }
    return cast("dict[str, Any]", document)


def ensure_writable(path: Path) -> None:
    """Makes sure, before anything is measured, that results can be written there: SettingError if not."""
    existing = next(parent for parent in path.absolute().parents if parent.exists())
    try:
        if path.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise _unwritable(path, error) from None


def write(path: Path, document: dict[str, Any], option: str = "--ddpperf-json") -> None:
    """Writes a document, whole or not at all, in a folder that is made if need be; SettingError if that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, render(document))
    except OSError as error:
        raise _unwritable(path, error, option) from None


def _unwritable(path: Path, error: OSError, option: str = "--ddpperf-json") -> SettingError:
    return SettingError(f"{option}: {path} cannot be written: {error.strerror or error}; name another file")


def _result_data(result: Result) -> ResultData:
    measured = result.measurement
    return {
        "test": result.test,
        "name": result.name,
        "strategy": measured.strategy,
        "recipe": dict(measured.recipe),
        "mode": measured.mode,
        "over": measured.over,
        "world_size": measured.world_size,
        "effective_batch_size": _number(measured.effective_batch_size),
        "environment_key": environment_key(measured.environment),
        "verdict": result.verdict.value,
        "metrics": {comparison.series.metric: _metric_data(comparison) for comparison in result.comparisons},
        "plan": {"warmup": measured.plan.warmup, "steps": measured.plan.steps},
        "turns": measured.turns,
        "launches": len(measured.launches),
        "seconds": rounded(result.seconds),
        "against": _paired_data(result.paired),
        "baseline": _baseline_data(result.baseline),
        "origin": result.origin,
        "counts": cast("CountsData | None", counts_data(measured.counts)),
        "still_sent": still_sent(measured),
        "profile": _profile_data(measured.profile),
        "sections": [
            {
                "path": section.path,
                "count": rounded(section.count),
                "seconds": rounded(section.seconds),
                "own_seconds": rounded(section.own_seconds),
                "share": rounded(section.share),
            }
            for section in sections_of(measured)
        ],
        "memory_by_rank": {
            kind: [rounded(value) for value in ranks] for kind, ranks in memory_by_rank(measured).items()
        },
        "memory_by_phase": {
            phase: cast("MemoryUseData", dataclasses.asdict(use)) for phase, use in memory_of_phases(measured).items()
        },
        "health": [_health(launch) for launch in measured.launches],
        "findings": list(findings(result)),
    }


def _baseline_data(baseline: BaselineRecord | None) -> BaselineData | None:
    if baseline is None:
        return None
    counted = baseline.counted
    return {
        "environment_key": environment_key(baseline.environment),
        "date": baseline.date,
        "commit": baseline.commit,
        "dirty": baseline.dirty,
        "counted": None if counted is None else cast("ProvenanceData", dataclasses.asdict(counted)),
    }


def _search_data(search: Search) -> BatchSizeData:
    return {
        "test": search.test,
        "training": search.training,
        "world_size": search.environment.world_size,
        "environment_key": environment_key(search.environment),
        "size": search.found.size,
        "peak": _number(search.found.peak),
        "limit": search.limit,
        "memory_limit": search.memory_limit,
        "tried": [
            {"size": trial.size, "fits": trial.fits, "peak": _number(trial.peak)} for trial in search.found.tried
        ],
    }


def _calibrated_data(calibrated: Calibrated) -> CalibratedData:
    found, measured = calibrated.calibration, calibrated.measurement
    return {
        "test": calibrated.test,
        "name": found.name,
        "strategy": measured.strategy,
        "recipe": dict(measured.recipe),
        "world_size": measured.world_size,
        "environment_key": environment_key(measured.environment),
        "step_time": [[_number(step) for step in run] for run in calibrated.runs],
        "steps": found.steps,
        "seconds": _number(found.seconds),
        "within": _spread_data(found.within),
        "between_launches": _spread_data(found.between_launches),
        "between_runs": _spread_data(found.between_runs),
        "noise_floor": _number(found.floor),
        "mde": _number(calibrated.mde),
        "false_alarms": _rate_data(calibrated.alarms),
        "inconclusive": _rate_data(calibrated.inconclusive),
        "recommended": cast("RecommendedData", dataclasses.asdict(calibrated.recommended)),
        "health": [_health(launch) for launch in measured.launches],
        "findings": list(map(finding_text, calibrated.findings)),
    }


def _spread_data(spread: Spread) -> SpreadData:
    return {"sd": _number(spread.sd), "df": cast("int", spread.df)}  # infinite for a default one alone, not here


def _rate_data(rate: Rate) -> RateData:
    return {
        "found": rate.found,
        "of": rate.of,
        "independent": rate.effective,
        "value": _number(rate.value),
        "interval": _interval(rate.interval),
    }


def _profile_data(profile: CommunicationProfile | None) -> ProfileData | None:
    if profile is None:
        return None
    window = profile.window
    return {
        "step": rounded(profile.step),
        "communication_busy": rounded(profile.busy),
        "communication_busy_share": rounded(profile.busy_share),
        "overlap": _number(profile.overlap),
        "exposed": rounded(profile.exposed),
        "gaps": rounded(profile.gaps),
        "transfer": _number(profile.transfer),
        "wait": _number(profile.wait),
        "slowest": None if profile.slowest is None else {"rank": profile.slowest[0], "share": profile.slowest[1]},
        "bandwidths": {
            bandwidth.kind: {"algbw": rounded(bandwidth.algorithm), "busbw": rounded(bandwidth.bus)}
            for bandwidth in profile.bandwidths
        },
        "ddp_window": None
        if window is None
        else {"communication": rounded(window.communication), "exposed": rounded(window.exposed)},
    }


def _health(launch: Launch) -> HealthData | None:
    """What went on in the machine during a launch; null where nobody looked."""
    if launch.health is None:
        return None
    return {"cpu": cast("CpuData", _facts(launch.health.cpu)), "gpus": [_gpu(gpu) for gpu in gpus_of(launch)]}


def _gpu(gpu: GpuHealth) -> GpuData:
    facts = {
        **_facts(gpu),
        "throttled": {name: _number(share) for name, share in gpu.throttled.items()},
        "others": [{"pid": pid, "memory": size} for pid, size in gpu.others.items()],
    }
    return cast("GpuData", facts)


def _facts(health: CpuHealth | GpuHealth) -> dict[str, Any]:
    facts = dataclasses.asdict(health)
    return {name: _number(fact) if isinstance(fact, float) else fact for name, fact in facts.items()}


def _paired_data(paired: PairedRevision | None) -> AgainstData | None:
    if paired is None:
        return None
    return {
        "revision": paired.revision,
        "commit": paired.commit,
        "launches": paired.launches,
        "modules": {name: {"here": here, "there": there} for name, (here, there) in paired.modules.items()},
    }


def _metric_data(comparison: Comparison) -> MetricData:
    series = comparison.series
    return {
        "unit": series.unit,
        "better": series.better,
        "family": series.family,
        "scale": series.scale,
        "gated": comparison.gated,
        "value": _number(series.value),
        "interval": _interval(series.interval),
        "samples": [_number(sample) for sample in series.samples],
        "baseline": _number(comparison.baseline),
        "baseline_samples": [_number(sample) for sample in comparison.base_samples],
        "change": _number(comparison.change),
        "change_interval": _interval(comparison.change_interval),
        "tolerance": _number(comparison.tolerance),
        "margin": _number(comparison.margin),
        "mde": _number(comparison.mde),
        "verdict": comparison.verdict.value,
        "note": "; ".join(filter(None, map(words_of_note, (comparison.note, comparison.difference)))),
    }


def _number(value: float | None) -> float | None:
    """A number that JSON can say: null for none, and for one that is infinite (an interval from too few launches)."""
    return rounded(value) if value is not None and math.isfinite(value) else None


def _interval(interval: Interval | None) -> IntervalData | None:
    if interval is None:
        return None
    return {"low": _number(interval.low), "high": _number(interval.high), "confidence": rounded(interval.confidence)}
