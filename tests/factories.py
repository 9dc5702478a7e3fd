"""Records for tests: each factory makes a whole one, and takes the fields that a test is about. And git."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import pytest

from pytest_ddpperf.against.git import Checkout
from pytest_ddpperf.analysis.diagnosis import analysis_of
from pytest_ddpperf.baselines.earlier_run import judged_by
from pytest_ddpperf.baselines.history.database import HistoryRun
from pytest_ddpperf.launch.launch_run import LaunchResult
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.launch import Launch, RankLaunch
from pytest_ddpperf.records.measurement import Environment, Interval, Measurement, Plan, Series
from pytest_ddpperf.records.phases import Bandwidth, CommunicationProfile, Window
from pytest_ddpperf.records.results import BaselineRecord, Comparison, Provenance, Result, StoredBaseline
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.documents.entries import Run
from pytest_ddpperf.reports.documents.run_file import run_of, run_text
from pytest_ddpperf.reports.failure import failures_text
from pytest_ddpperf.reports.outputs import Outputs
from pytest_ddpperf.run.call.planning import LaunchLimits
from pytest_ddpperf.run.call.variants import CUSTOM, Variant
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.stats.intervals import change_of_suite
from pytest_ddpperf.strategies.strategy import Strategy

TORCH = tuple(map(int, metadata.version("torch").split(".")[:2]))  # for what a test expects of an older one
SHARDS_ON_CPU = TORCH >= (2, 7)
NEEDS_FSDP2 = pytest.mark.skipif(not SHARDS_ON_CPU, reason="fsdp2 on the CPU needs torch 2.7")

OTHER_PLUGINS = {
    "pytest_asyncio": ("asyncio",),
    "pytest_cov": ("pytest_cov",),
    "pytest_html": ("html", "html_fixtures", "metadata"),
    "pytest_jsonreport": ("pytest_jsonreport", "metadata"),
    "pytest_randomly": ("randomly",),
    "pytest_rerunfailures": ("rerunfailures",),
}
"""By module, the names by which pytest loads plugins that only tests of their own use."""


T = TypeVar("T")


def known(value: T | None) -> T:
    """The value, which is not None."""
    assert value is not None
    return value


def without_plugins(*kept: str) -> str:
    """The options by which pytest loads none of them but those of these modules."""
    loaded = {name for module in kept for name in OTHER_PLUGINS[module]}
    names = {name for several in OTHER_PLUGINS.values() for name in several}
    return " ".join(f"-p no:{name}" for name in sorted(names - loaded))


def runnable(strategies: Iterable[str]) -> list[str]:
    """Those that this torch runs on the CPU."""
    return [strategy for strategy in strategies if SHARDS_ON_CPU or not strategy.startswith("fsdp2")]


PROFILE = CommunicationProfile(
    step=0.05,
    busy=0.02,
    overlapped=0.015,
    gaps=0.001,
    transfer=0.012,
    wait=0.008,
    slowest=(1, 0.75),
    bandwidths=(Bandwidth(kind="all_reduce", algorithm=2.5e9, bus=3.75e9),),
    window=Window(communication=0.03, overlapped=0.02),
)


def make_environment(**facts: Any) -> Environment:
    """A CPU machine with eight cores and two ranks."""
    model = facts.get("cpu_model", "chip")
    defaults = {
        "device": "cpu",
        "device_model": model,
        "device_count": 0,
        "cpu_model": model,
        "cores": 8,
        "threads": 1,
        "nodes": 1,
        "backend": "gloo",
        "world_size": 2,
        "torch": "2.13",
        "cuda": None,
    }
    return Environment(**{**defaults, **facts})


def make_variant(name: str = "ddp", subject: Any = None, strategy: Strategy | None = None, **fields: Any) -> Variant:
    """A variant of a step of its own, or of a Workload under a strategy."""
    defaults = {"mode": None, "environment": make_environment(), "strategy": str(strategy or CUSTOM)}
    return Variant(**{**defaults, **fields, "name": name, "subject": subject, "resolved": strategy})


def make_rank_launch(rank: int = 0, step_times: tuple[float, ...] = (1.0,), **fields: Any) -> RankLaunch:
    """What a rank reports that only timed steps."""
    defaults: dict[str, Any] = {"memory": {}, "loss": None, "samples_per_step": None, "tokens_per_step": None}
    return RankLaunch(rank=rank, step_times=step_times, **{**defaults, **fields})


def make_limits(  # noqa: PLR0917 - as a call gives them
    steps: int | None,
    warmup: int,
    launches: int,
    screening: float,
    timeout: float = math.inf,
    interleave: bool | None = None,  # noqa: FBT001 - a setting
    **more: Any,
) -> LaunchLimits:
    """Limits of launches, of which those of the first ``screening`` seconds are planned."""
    settings = Settings(steps=steps, warmup=warmup, launches=launches, timeout=timeout, interleave=interleave)
    return LaunchLimits(settings=settings, screening=screening, **more)


def make_counts(
    details: Mapping[str, Mapping[str, float]], unstable: Mapping[str, str] | None = None, **totals: float
) -> Counts:
    """Totals are the sums of their details, unless given."""
    sums = {metric: sum(parts.values()) for metric, parts in details.items()}
    return Counts(totals={**sums, **totals}, details=details, unstable=unstable or {})


def make_series(metric: str, value: float, **fields: Any) -> Series:
    """A gated time with eight equal samples."""
    defaults = {
        "unit": "s",
        "better": "lower",
        "family": "absolute",
        "scale": "ratio",
        "gated": True,
        "min_tolerance": 0.0,
        "samples": (value,) * 8,
        "interval": None,
    }
    return Series(metric=metric, value=value, **{**defaults, **fields})


def make_interval(low: float, high: float) -> Interval:
    """One of 95 %."""
    return Interval(low=low, high=high, confidence=0.95)


def make_launch(*step_times: tuple[float, ...], **fields: Any) -> Launch:
    """A launch of as many ranks as there are lists of step times, or of these ``ranks``."""
    ranks = tuple(make_rank_launch(rank, times) for rank, times in enumerate(step_times))
    return Launch(**{"round": 0, "ranks": ranks, "seconds": 1.0, **fields})


def make_measurement(**fields: Any) -> Measurement:
    """A benchmark named after its strategy, ddp, without launches and metrics."""
    defaults = {"name": "ddp", "strategy": "ddp", "mode": None, "plan": Plan(warmup=5, steps=60), "launches": ()}
    return Measurement(**{**defaults, "environment": make_environment(), **fields})


def make_baseline_record(**fields: Any) -> BaselineRecord:
    """What was stored of a benchmark named after its strategy, ddp, without metrics."""
    defaults: dict[str, Any] = {"name": "ddp", "strategy": "ddp", "mode": None, "plan": Plan(warmup=5, steps=60)}
    defaults |= {"environment": make_environment(), "series": (), "commit": None, "date": "2026-01-12"}
    return BaselineRecord(**{**defaults, **fields})


def make_result(**fields: Any) -> Result:
    """The result of a benchmark that has no baseline, with its measurement and verdict."""
    defaults = {"test": "t.py::test", "comparisons": (), "reference": StoredBaseline(record=None, origin="")}
    return Result(**{**defaults, **fields})


def make_new_result(test: str = "t.py::test_a", *series: Series, **fields: Any) -> Result:
    """The result of a benchmark that has these metrics and no baseline."""
    comparisons = tuple(
        Comparison(series=metric, tolerance=0.03, verdict=Verdict.NEW, gated=metric.gated) for metric in series
    )
    measured = make_measurement(series=series, **fields)
    return make_result(test=test, measurement=measured, comparisons=comparisons, verdict=Verdict.NEW)


def make_history_run(number: int, **fields: Any) -> HistoryRun:
    """The recorded run of a commit; commits of higher numbers are later, by a day each."""
    day = f"2026-{1 + number // 28 % 12:02}-{1 + number % 28:02}T00:00:00+00:00"
    defaults = {"date": day, "commit": f"{number:07x}" + "0" * 33, "commit_date": day, "branch": "main"}
    return HistoryRun(**{**defaults, **fields})


def git(folder: Path, *arguments: str) -> str:
    """What git prints in a folder, without the user's own name, branch and signature."""
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def run_on_cpu(
    launcher: Launcher, function: Any, *args: object, world_size: int = 2, timeout: float = 20.0, **how: Any
) -> LaunchResult[Any]:
    """A launch of ranks on the CPU."""
    return launcher.run(function, *args, world_size=world_size, device="cpu", backend="gloo", timeout=timeout, **how)


def commit_all(folder: Path, message: str = "a commit") -> None:
    """Commits all files of a folder."""
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", message)


def virtual_environment(folder: Path, packages: Mapping[str, str] | None = None, path: tuple[str, ...] = ()) -> Path:
    """The interpreter of a new environment, which has each of these packages in that version, and searches ``path``.

    A package is a module of its name with the constant ``VERSION``.
    """
    base = Path(sys._base_executable)  # type: ignore[attr-defined]  # as the module venv asks for it
    site = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    for made in (site, folder / "bin"):
        made.mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(base)
    (folder / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
    for name, version in (packages or {}).items():
        (site / f"{name}.py").write_text(f"VERSION = {version!r}\n")
        info = site / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (site / "others.pth").write_text("".join(f"{entry}\n" for entry in path))
    return folder / "bin" / "python"


def make_results_document(
    results: Iterable[Result],
    code: Checkout | None,
    *,
    date: str | None = None,
    interrupted: str | None = None,
    unmeasured: dict[str, str] | None = None,
    **more: Iterable[Any],
) -> dict[str, Any]:
    """The document of a run with these results; ``more`` that it has made, by fields of Outputs."""
    made: dict[str, Any] = {name: [*several] for name, several in more.items()}
    results = list(map(analysed, results))
    made |= {"interrupted": interrupted, "unmeasured": unmeasured or {}}
    outputs = Outputs(results=results, common_change=change_of_suite(results), **made)
    document: dict[str, Any] = json.loads(run_text(outputs, code, date=date))
    return document


def judged_anew(before: Run, after: Run) -> list[Result]:
    """The benchmarks of the second run that both have, judged by the first run, as ``ddpperf compare`` does."""
    return judged_by(before.results, Provenance(date=before.date or "", commit=before.commit), after.results)


def analysed(result: Result) -> Result:
    """The result with what its launches say of its step, as a run has it."""
    return replace(result, step=analysis_of(result.measurement))


def read_again(document: Mapping[str, Any]) -> Run:
    """The run of a document, as it is read from its file."""
    return run_of(json.dumps(document))


def failure_text(result: Result, verdict: Verdict | None = None, *, accept: str = "", **more: Any) -> str:
    """Why one benchmark fails its test, by default with its own verdict."""
    return failures_text([(result, verdict or result.verdict)], accept=accept, **more)
